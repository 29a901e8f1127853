#include "cpu/memory_filler.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/memory.h"

namespace freetoken {
namespace {

constexpr size_t kSystemPage = 4096, kChunkBytes = size_t(2) << 20;
#ifdef MADV_POPULATE_WRITE
constexpr int kPopulateWrite = MADV_POPULATE_WRITE;
#else
constexpr int kPopulateWrite = 23;  // of headers before Linux 5.14
#endif

void fill(uint8_t* begin, size_t bytes) {
  if (madvise(begin, align_up(bytes, kSystemPage), kPopulateWrite) == 0 || errno != EINVAL) return;
  // A kernel without it: a write that changes nothing.
  for (size_t at = 0; at < bytes; at += kSystemPage) __atomic_fetch_or(begin + at, uint8_t(0), __ATOMIC_RELAXED);
}

}  // namespace

MemoryFiller::MemoryFiller(std::vector<std::span<uint8_t>> ranges) : ranges_(std::move(ranges)), thread_([this] { run(); }) {}

MemoryFiller::~MemoryFiller() {
  stop_ = true;
  thread_.join();
}

void MemoryFiller::run() {
  const sched_param parameters{};
  sched_setscheduler(0, SCHED_IDLE, &parameters);
  for (const std::span<uint8_t> range : ranges_)
    for (size_t at = 0; at < range.size(); at += kChunkBytes) {
      if (stop_) return;
      fill(range.data() + at, std::min(kChunkBytes, range.size() - at));
    }
  done_ = true;
}

}  // namespace freetoken
