// A range of addresses per device, and one for pinned host memory. An address is handed out once: what was freed faults
// for ever, so a pointer that a captured graph still holds cannot reach newer memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace freetoken::emu {

enum class Place : uint8_t { kElsewhere, kDevice, kPinned };

struct Allocation {
  char* begin = nullptr;
  size_t bytes = 0;
  bool freed = false;
};

class Arena {
 public:
  Arena(char* base, size_t span_bytes, bool device) : device_(device), base_(base), span_(span_bytes) {}

  // Null: the limit is reached. Filled with 0xff bytes: NaN in every float format.
  void* allocate(size_t bytes, size_t limit_bytes);
  // False: not an allocation, or freed before.
  bool release(void* pointer);
  // The allocation, freed ones too, whose bytes hold the pointer; one past the end counts. False: none.
  bool find(const void* pointer, Allocation* found) const;
  // All of [pointer, pointer + bytes) lies in one live allocation.
  bool is_live(const void* pointer, size_t bytes) const;
  size_t used_bytes() const;

 private:
  const bool device_;
  char* const base_;
  const size_t span_;
  size_t next_ = 0;
  mutable std::mutex mutex_;
  std::map<const char*, Allocation> allocations_;
  size_t used_bytes_ = 0;
};

}  // namespace freetoken::emu
