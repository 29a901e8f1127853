// Activations: rows of matmul inputs in their narrowed form, one buffer reused by every matmul of a step.
#pragma once
#include <cstdint>
#include <vector>

#include "core/memory.h"
#include "kernels/matmul.h"

namespace freetoken {

class Activations {
 public:
  // Room for `rows` rows of max_k values of any kind.
  Status reserve(int rows, int max_k) {
    stride_bytes_ = align_up(activation_row_bytes(ActivationKind::kF32, max_k) + 64, 64);
    FT_ASSIGN_OR_RETURN(memory_, Memory::allocate(stride_bytes_ * size_t(rows)));
    pointers_.resize(rows);
    for (int r = 0; r < rows; r++) pointers_[r] = row(r);
    return {};
  }
  uint8_t* row(int r) const { return memory_.data() + stride_bytes_ * size_t(r); }
  // Where the values from column `k` on (a multiple of 32) of a row lie.
  uint8_t* at(int r, ActivationKind kind, int k) const { return row(r) + activation_row_bytes(kind, k); }
  const uint8_t* const* rows(int first = 0) const { return pointers_.data() + first; }

 private:
  Memory memory_;
  size_t stride_bytes_ = 0;
  std::vector<const uint8_t*> pointers_;
};

}  // namespace freetoken
