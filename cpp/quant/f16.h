// f16, packed as half_pairs.h says.
#pragma once
#include "core/dtype.h"
#include "quant/half_pairs.h"

namespace freetoken::f16 {

inline void decode(int k, const uint8_t* row, float* out) {
  for (int i = 0; i < k; i++) out[i] = f16_to_f32(load_u16(row + size_t(i) * 2));
}

using half_pairs::pack;
using half_pairs::unpack;

}  // namespace freetoken::f16
