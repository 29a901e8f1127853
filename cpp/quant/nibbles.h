// The 4-bit plane shared by Q4_0 and Q4_1.
// Source: 16 bytes hold 32 codes; byte i has code i in its low nibble and code 16 + i in its high one.
// T32: 8 granules of 64 bytes, 4 k each: byte 4 r + j has k = 4 g + j of row r in the low nibble, of row 16 + r in the
// high one, so one load and one shift give both halves of the tile.
#pragma once
#include "quant/bytes.h"

namespace freetoken::nibbles {

constexpr uint32_t kLow = 0x0f0f0f0fu, kHigh = 0xf0f0f0f0u;

// Row r of half 0 (a) and of half 1 (b): 16 source bytes each, granules at `to`.
inline void pack_rows(const uint8_t* a, const uint8_t* b, int r, uint8_t* to) {
  for (int g = 0; g < 4; g++) {
    const uint32_t x = load_u32(a + 4 * g), y = load_u32(b + 4 * g);
    store_u32(to + g * 64 + 4 * r, (x & kLow) | (y & kLow) << 4);
    store_u32(to + (g + 4) * 64 + 4 * r, (x & kHigh) >> 4 | (y & kHigh));
  }
}

// Inverse of pack_rows for one half; `shift` is 0 for half 0, 4 for half 1.
inline void unpack_row(const uint8_t* from, int r, int shift, uint8_t* row) {
  for (int g = 0; g < 4; g++) {
    const uint32_t low = load_u32(from + g * 64 + 4 * r) >> shift & kLow;
    const uint32_t high = load_u32(from + (g + 4) * 64 + 4 * r) >> shift & kLow;
    store_u32(row + 4 * g, low | high << 4);
  }
}

}  // namespace freetoken::nibbles
