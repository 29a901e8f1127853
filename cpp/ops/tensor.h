// Tensor and weight handles. Only the Ops that made a handle may touch the bytes behind it: `address` is a pointer on the
// CPU, a device address on a GPU, an offset in a private space in tests.
#pragma once
#include <cstdint>

#include "core/dtype.h"
#include "quant/format.h"

namespace freetoken {

// A row-major matrix; rows start row_bytes apart (padded to whole tiles of 32 columns).
struct Tensor {
  uint64_t address = 0;
  DType dtype = DType::kF32;
  int32_t rows = 0, cols = 0;
  int64_t row_bytes = 0;

  bool valid() const { return address != 0; }
  Tensor first_rows(int count) const { return {address, dtype, count, cols, row_bytes}; }
};

// A T32 matrix of n output rows and k inputs. For interleaved gate/up pairs n counts both (quant/t32.h).
struct Weight {
  uint64_t address = 0;
  WeightFormat format = WeightFormat::kF32;
  int32_t n = 0, k = 0;

  bool valid() const { return address != 0; }
};

}  // namespace freetoken
