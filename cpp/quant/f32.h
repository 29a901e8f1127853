// f32. T32 unit of 1 k, 128 bytes: the value of rows 0..31.
#pragma once
#include "quant/bytes.h"
#include "quant/format.h"

namespace freetoken::f32 {

inline void decode(int k, const uint8_t* row, float* out) { std::memcpy(out, row, size_t(k) * 4); }

inline void pack(int k, const uint8_t* const rows[kTileRows], uint8_t* tile) {
  for (int r = 0; r < kTileRows; r++)
    for (int i = 0; i < k; i++)
      store_u32(tile + size_t(i) * 128 + r * 4, rows[r] ? load_u32(rows[r] + size_t(i) * 4) : 0);
}

inline void unpack(int k, const uint8_t* tile, uint8_t* const rows[kTileRows]) {
  for (int r = 0; r < kTileRows; r++)
    for (int i = 0; rows[r] && i < k; i++) store_u32(rows[r] + size_t(i) * 4, load_u32(tile + size_t(i) * 128 + r * 4));
}

}  // namespace freetoken::f32
