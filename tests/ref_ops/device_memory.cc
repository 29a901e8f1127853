#include "ref_ops/device_memory.h"

#include "ref_ops/poison.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define FT_NO_ASAN __attribute__((no_sanitize("address"), noinline))
#else
#define FT_NO_ASAN
#define ASAN_POISON_MEMORY_REGION(address, bytes) static_cast<void>(address)
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) static_cast<void>(address)
#endif

namespace freetoken::ref {
namespace {

constexpr uint8_t kGuard = 0xdb;

// Plain loops: the sanitizer would refuse memset and memcmp on a guard zone.
FT_NO_ASAN void fill_guard(volatile uint8_t* p, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) p[i] = kGuard;
}
FT_NO_ASAN size_t first_damage(const volatile uint8_t* p, size_t bytes) {
  for (size_t i = 0; i < bytes; i++)
    if (p[i] != kGuard) return i;
  return bytes;
}

}  // namespace

Block::Block(std::string name, uint64_t address, size_t bytes, Memory memory)
    : name_(std::move(name)), address_(address), bytes_(bytes), memory_(std::move(memory)) {
  for (uint8_t* zone : {data() - kGuardBytes, data() + bytes_}) {
    fill_guard(zone, kGuardBytes);
    ASAN_POISON_MEMORY_REGION(zone, kGuardBytes);
  }
}

Block::~Block() {
  for (uint8_t* zone : {data() - kGuardBytes, data() + bytes_}) ASAN_UNPOISON_MEMORY_REGION(zone, kGuardBytes);
}

std::string Block::check_guards() {
  for (const bool after : {false, true}) {
    uint8_t* zone = after ? data() + bytes_ : data() - kGuardBytes;
    const size_t at = first_damage(zone, kGuardBytes);
    if (at == kGuardBytes) continue;
    fill_guard(zone, kGuardBytes);
    return after ? std::to_string(at) + " bytes past the end of " + name_ + " were written"
                 : std::to_string(kGuardBytes - at) + " bytes before the start of " + name_ + " were written";
  }
  return {};
}

uint64_t Block::checksum() const {
  uint64_t sum = 0x9e3779b97f4a7c15u, word = 0;
  for (size_t i = 0; i < bytes_; i += 8) {
    std::memcpy(&word, data() + i, bytes_ - i < 8 ? bytes_ - i : 8);
    sum = (sum ^ word) * 0x100000001b3u + (sum >> 29);
  }
  return sum;
}

Result<Block*> DeviceMemory::allocate(std::string name, size_t bytes) {
  // The tail: whole words for the guard, whatever the bytes.
  FT_ASSIGN_OR_RETURN(Memory memory, Memory::allocate(Block::kFront + bytes + kGuardBytes));
  const std::lock_guard lock(mutex_);
  const uint64_t address = next_;
  next_ += align_up(bytes, kSpacing) + kSpacing;
  Block& block = blocks_.try_emplace(address, std::move(name), address, bytes, std::move(memory)).first->second;
  return &block;
}

Block* DeviceMemory::find(uint64_t address, size_t bytes) const {
  const std::lock_guard lock(mutex_);
  auto it = blocks_.upper_bound(address);
  if (it == blocks_.begin()) return nullptr;
  const Block& block = std::prev(it)->second;
  const uint64_t offset = address - block.address();
  return offset <= block.bytes() && bytes <= block.bytes() - offset ? const_cast<Block*>(&block) : nullptr;
}

uint8_t* DeviceMemory::at(uint64_t address, size_t bytes) const {
  const Block* block = find(address, bytes);
  return block ? block->data() + (address - block->address()) : nullptr;
}

std::string DeviceMemory::describe(uint64_t address) const {
  const std::lock_guard lock(mutex_);
  auto it = blocks_.upper_bound(address);
  if (it == blocks_.begin()) return "an address that is none of this device's";
  const Block& block = std::prev(it)->second;
  return "byte " + std::to_string(address - block.address()) + " of " + block.name() + " (" + std::to_string(block.bytes()) +
         " bytes)";
}

std::string DeviceMemory::check(int sealed_blocks) {
  const std::lock_guard lock(mutex_);
  std::string first;
  for (auto& [address, block] : blocks_) {
    if (block.sealed) continue;
    std::string damage = block.check_guards();
    if (first.empty()) first = std::move(damage);
  }
  auto it = blocks_.lower_bound(next_sealed_);
  for (size_t seen = 0; sealed_blocks > 0 && seen < blocks_.size(); seen++, it++) {
    if (it == blocks_.end()) it = blocks_.begin();
    Block& block = it->second;
    if (!block.sealed) continue;
    sealed_blocks--;
    next_sealed_ = block.address() + 1;
    std::string damage = block.check_guards();
    if (damage.empty() && block.checksum() != block.sealed_checksum) {
      damage = "weights " + block.name() + " were written after they were committed";
      block.sealed_checksum = block.checksum();
    }
    if (first.empty()) first = std::move(damage);
  }
  return first;
}

}  // namespace freetoken::ref
