// Q4_0. Source block of 32 k: fp16 d, 16 bytes of codes 0..15; weight = (code - 8) * d.
// T32 unit of 32 k, 576 bytes: fp16 d of rows 0..31, then the granules of nibbles.h.
#pragma once
#include "core/dtype.h"
#include "quant/format.h"
#include "quant/nibbles.h"

namespace freetoken::q4_0 {

constexpr int kBlock = 32, kBlockBytes = 18, kUnitBytes = 576;
constexpr uint8_t kPadding[kBlockBytes] = {0,    0,    0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88,
                                           0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88};

inline void decode(int k, const uint8_t* row, float* out) {
  for (int i = 0; i < k; i += kBlock, row += kBlockBytes, out += kBlock) {
    const float d = f16_to_f32(load_u16(row));
    for (int j = 0; j < 16; j++) {
      out[j] = d * float(int(row[2 + j] & 15) - 8);
      out[j + 16] = d * float(int(row[2 + j] >> 4) - 8);
    }
  }
}

inline void pack(int k, const uint8_t* const rows[kTileRows], uint8_t* tile) {
  for (int b = 0; b < k / kBlock; b++, tile += kUnitBytes) {
    const auto block = [&](int r) { return rows[r] ? rows[r] + size_t(b) * kBlockBytes : kPadding; };
    for (int r = 0; r < kTileRows; r++) store_u16(tile + 2 * r, load_u16(block(r)));
    for (int r = 0; r < 16; r++) nibbles::pack_rows(block(r) + 2, block(r + 16) + 2, r, tile + 64);
  }
}

inline void unpack(int k, const uint8_t* tile, uint8_t* const rows[kTileRows]) {
  for (int b = 0; b < k / kBlock; b++, tile += kUnitBytes) {
    for (int r = 0; r < kTileRows; r++) {
      if (!rows[r]) continue;
      uint8_t* to = rows[r] + size_t(b) * kBlockBytes;
      store_u16(to, load_u16(tile + 2 * r));
      nibbles::unpack_row(tile + 64, r % 16, r / 16 * 4, to + 2);
    }
  }
}

}  // namespace freetoken::q4_0
