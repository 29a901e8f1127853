// T32 layout of the 16-bit formats. Unit of 2 k, 128 bytes: for row r (half 0 = rows 0..15, half 1 = 16..31, one after
// the other) the values k and k + 1. An odd K is padded with a zero.
#pragma once
#include "quant/bytes.h"
#include "quant/format.h"

namespace freetoken::half_pairs {

inline void pack(int k, const uint8_t* const rows[kTileRows], uint8_t* tile) {
  for (int r = 0; r < kTileRows; r++) {
    uint8_t* to = tile + r * 4;
    if (!rows[r]) {
      for (int i = 0; i < k; i += 2, to += 128) store_u32(to, 0);
      continue;
    }
    for (int i = 0; i + 1 < k; i += 2, to += 128) store_u32(to, load_u32(rows[r] + 2 * i));
    if (k % 2) store_u32(to, load_u16(rows[r] + 2 * (k - 1)));
  }
}

inline void unpack(int k, const uint8_t* tile, uint8_t* const rows[kTileRows]) {
  for (int r = 0; r < kTileRows; r++) {
    if (!rows[r]) continue;
    const uint8_t* from = tile + r * 4;
    for (int i = 0; i + 1 < k; i += 2, from += 128) store_u32(rows[r] + 2 * i, load_u32(from));
    if (k % 2) store_u16(rows[r] + 2 * (k - 1), load_u16(from));
  }
}

}  // namespace freetoken::half_pairs
