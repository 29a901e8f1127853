#include "memory/arena.h"

#include <sys/mman.h>

#include <cstring>

#include "emulator/block.h"
#include "memory/guard.h"
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace freetoken::emu {
namespace {

constexpr size_t kPage = 4096;
size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

void* Arena::allocate(size_t bytes, size_t limit_bytes) {
  const std::lock_guard lock(mutex_);
  if (used_bytes_ + bytes > limit_bytes || bytes > limit_bytes) return nullptr;
  const size_t pages = round_up(bytes ? bytes : 1, kPage);
  if (next_ + pages + kPage > span_) die("the emulator has handed out all of its addresses");
  char* begin = base_ + next_;
  if (device_)
    open_device_pages(begin, pages);
  else if (mprotect(begin, pages, PROT_READ | PROT_WRITE))
    die("the host has no %zu bytes for pinned memory", pages);
  // The end of the allocation, rounded to 16 bytes, is the end of the page: what runs past it faults at once.
  const size_t shift = (pages - round_up(bytes, 256)) / 256 * 256;
  begin += shift;
  {
    const DeviceMemoryAccess access;
    std::memset(begin, 0xff, bytes);
  }
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(begin - shift, shift);
  __asan_poison_memory_region(begin + bytes, pages - shift - bytes);
#endif
  next_ += pages + kPage;
  used_bytes_ += bytes;
  allocations_[begin] = Allocation{begin, bytes, false};
  return begin;
}

bool Arena::release(void* pointer) {
  const std::lock_guard lock(mutex_);
  const auto at = allocations_.find(static_cast<const char*>(pointer));
  if (at == allocations_.end() || at->second.freed) return false;
  Allocation& a = at->second;
  a.freed = true;
  used_bytes_ -= a.bytes;
  char* first = base_ + size_t(a.begin - base_) / kPage * kPage;
  const size_t pages = round_up(size_t(a.begin - first) + (a.bytes ? a.bytes : 1), kPage);
  // Gives the pages back and leaves addresses that fault.
  if (mmap(first, pages, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
    die("freeing emulated memory failed");
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(first, pages);
#endif
  return true;
}

bool Arena::find(const void* pointer, Allocation* found) const {
  const std::lock_guard lock(mutex_);
  auto at = allocations_.upper_bound(static_cast<const char*>(pointer));
  if (at == allocations_.begin()) return false;
  const Allocation& a = (--at)->second;
  if (pointer > a.begin + a.bytes) return false;
  *found = a;
  return true;
}

bool Arena::is_live(const void* pointer, size_t bytes) const {
  Allocation a;
  return find(pointer, &a) && !a.freed && static_cast<const char*>(pointer) + bytes <= a.begin + a.bytes;
}

size_t Arena::used_bytes() const {
  const std::lock_guard lock(mutex_);
  return used_bytes_;
}

}  // namespace freetoken::emu
