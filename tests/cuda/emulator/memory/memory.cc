#include "memory/memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <map>
#include <memory>
#include <mutex>

#include "emulator/block.h"

namespace freetoken::emu {
namespace {

struct Registered {
  std::mutex mutex;
  std::map<const char*, size_t> ranges;
};
Registered& registered() {
  static auto* const all = new Registered;
  return *all;
}

// Device 0, device 1, ..., pinned memory: equal spans of one range of addresses.
constexpr size_t kSpanBytes = size_t(1) << 37;
struct Memory {
  char* base;
  std::unique_ptr<Arena> arena[kMaxDevices + 1];
};
const Memory& memory() {
  static const Memory* const all = [] {
    auto* made = new Memory;
    void* map =
        mmap(nullptr, kSpanBytes * (kMaxDevices + 1), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) die("no address space for emulated memory");
    made->base = static_cast<char*>(map);
    for (int i = 0; i <= kMaxDevices; i++)
      made->arena[i] = std::make_unique<Arena>(made->base + i * kSpanBytes, kSpanBytes, i < kMaxDevices);
    return made;
  }();
  return *all;
}

// Whether the process has anything at this address, without touching it.
bool is_mapped(uintptr_t address) {
  unsigned char unused;
  return mincore(reinterpret_cast<void*>(address & ~uintptr_t(4095)), 1, &unused) == 0 || errno != ENOMEM;
}

void check_word(const Kernel& kernel, size_t index, uint64_t word) {
  const auto* p = reinterpret_cast<const void*>(word);
  const Owner owner = owner_of(p);
  const auto refuse = [&](const char* what) {
    die("kernel %s: argument word %zu (%p) points to %s", kernel.name, index, p, what);
  };
  if (owner.place == Place::kElsewhere) {
    // User addresses of x86-64 that are code, heap (AddressSanitizer's: 0x60), stack or mapped: nothing a device can read.
    const uint64_t top = word >> 40;
    const bool looks_like_host =
        (top >= 0x55 && top <= 0x56) || (top >= 0x60 && top <= 0x64) || (top >= 0x7e && top <= 0x7f);
    if (looks_like_host && word >> 47 == 0 && is_mapped(word) && !is_pinned(p, 1))
      refuse("host memory that is not pinned");
    return;
  }
  Allocation a;
  const Arena& arena = owner.place == Place::kDevice ? device_memory(owner.device) : pinned_memory();
  if (!arena.find(p, &a))
    refuse(owner.place == Place::kDevice ? "device memory that was never allocated"
                                         : "pinned memory that was never allocated");
  if (a.freed) refuse(owner.place == Place::kDevice ? "device memory that was freed" : "pinned memory that was freed");
  if (owner.place == Place::kDevice && owner.device != kernel.device) refuse("the memory of another device");
}

}  // namespace

Arena& device_memory(int device) { return *memory().arena[device]; }
Arena& pinned_memory() { return *memory().arena[kMaxDevices]; }

Owner owner_of(const void* pointer) {
  const size_t offset = reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(memory().base);
  const size_t span = offset / kSpanBytes;
  if (span > kMaxDevices) return {};
  return span == kMaxDevices ? Owner{Place::kPinned, -1} : Owner{Place::kDevice, int(span)};
}

bool register_host(void* pointer, size_t bytes) {
  Registered& all = registered();
  const std::lock_guard lock(all.mutex);
  const auto* begin = static_cast<const char*>(pointer);
  const auto after = all.ranges.lower_bound(begin);
  if (after != all.ranges.end() && after->first < begin + bytes) return false;
  if (after != all.ranges.begin())
    if (const auto before = std::prev(after); before->first + before->second > begin) return false;
  all.ranges[begin] = bytes;
  return true;
}

bool unregister_host(void* pointer) {
  Registered& all = registered();
  const std::lock_guard lock(all.mutex);
  return all.ranges.erase(static_cast<const char*>(pointer)) == 1;
}

bool is_pinned(const void* pointer, size_t bytes) {
  if (owner_of(pointer).place == Place::kPinned) return pinned_memory().is_live(pointer, bytes);
  Registered& all = registered();
  const std::lock_guard lock(all.mutex);
  const auto* begin = static_cast<const char*>(pointer);
  auto at = all.ranges.upper_bound(begin);
  if (at == all.ranges.begin()) return false;
  --at;
  return begin + bytes <= at->first + at->second;
}

bool is_device_range(const void* pointer, size_t bytes) {
  const Owner owner = owner_of(pointer);
  return owner.place == Place::kDevice && device_memory(owner.device).is_live(pointer, bytes);
}

void check_arguments(const Kernel& kernel) {
  for (size_t i = 0; i < kernel.argument_words.size(); i++) check_word(kernel, i, kernel.argument_words[i]);
}

}  // namespace freetoken::emu
