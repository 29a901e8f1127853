// WeightArena: memory of weights, taken from large slabs so that even a small expert lies on huge pages.
#pragma once
#include <cstdint>
#include <vector>

#include "core/memory.h"

namespace freetoken {

class WeightArena {
 public:
  // 64-byte aligned, or 4096 where asked; zeroed. The unused tail of a slab is never touched, so it takes no memory.
  Result<uint8_t*> take(size_t bytes, size_t alignment) {
    size_t begin = align_up(used_, alignment);
    if (slabs_.empty() || begin + bytes > slabs_.back().size_bytes()) {
      FT_ASSIGN_OR_RETURN(Memory slab, Memory::allocate(bytes > kSlabBytes ? bytes : kSlabBytes));
      slabs_.push_back(std::move(slab));
      begin = 0;
    }
    used_ = begin + bytes;
    total_bytes_ += int64_t(bytes);
    return slabs_.back().data() + begin;
  }
  int64_t total_bytes() const { return total_bytes_; }

 private:
  static constexpr size_t kSlabBytes = size_t(256) << 20;
  std::vector<Memory> slabs_;
  size_t used_ = 0;
  int64_t total_bytes_ = 0;
};

}  // namespace freetoken
