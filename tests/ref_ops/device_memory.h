// DeviceMemory: the address space of RefOps. Addresses are numbers that no host pointer can be (not canonical on x86-64: a
// host that follows one faults at once), blocks lie far apart, and each has guard zones whose pattern is checked.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "core/memory.h"
#include "core/status.h"

namespace freetoken::ref {

constexpr uint64_t kDeviceBase = 0x5ef0'0000'0000'0000;
constexpr size_t kGuardBytes = 256;

class Block {
 public:
  Block(std::string name, uint64_t address, size_t bytes, Memory memory);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  const std::string& name() const { return name_; }
  uint64_t address() const { return address_; }
  size_t bytes() const { return bytes_; }
  uint8_t* data() const { return memory_.data() + kFront; }
  // Empty, or where a guard zone was written; the pattern is then restored.
  std::string check_guards();
  uint64_t checksum() const;

  // A tensor's: distance of rows, and how many from the first may hold something else than poison.
  int64_t row_bytes = 0;
  int rows = 0, used_rows = 0;
  // Read-only from commit on.
  bool sealed = false;
  uint64_t sealed_checksum = 0;

  static constexpr size_t kFront = 4096;  // keeps a block aligned to pages; its last kGuardBytes are the guard

 private:
  std::string name_;
  uint64_t address_;
  size_t bytes_;
  Memory memory_;
};

// Blocks are never freed before the memory itself. Thread-safe.
class DeviceMemory {
 public:
  // Zeroed. Fails with kResourceExhausted.
  Result<Block*> allocate(std::string name, size_t bytes);
  // The block that holds all of [address, address + bytes); null when none does.
  Block* find(uint64_t address, size_t bytes) const;
  // Its bytes, or null.
  uint8_t* at(uint64_t address, size_t bytes) const;
  // An address in words, for messages.
  std::string describe(uint64_t address) const;
  // The first damage of any guard zone, or empty. `sealed_blocks`: also compares the contents of that many sealed blocks,
  // taking turns.
  std::string check(int sealed_blocks);

 private:
  static constexpr uint64_t kSpacing = 1 << 20;
  mutable std::mutex mutex_;
  std::map<uint64_t, Block> blocks_;
  uint64_t next_ = kDeviceBase + kSpacing, next_sealed_ = 0;
};

}  // namespace freetoken::ref
