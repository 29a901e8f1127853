// Q4_1. Source block of 32 k: fp16 d, fp16 m, 16 bytes of codes 0..15; weight = code * d + m, two roundings.
// T32 unit of 32 k, 640 bytes: fp16 d of rows 0..31, fp16 m of rows 0..31, then the granules of nibbles.h.
#pragma once
#include "core/dtype.h"
#include "quant/format.h"
#include "quant/nibbles.h"

namespace freetoken::q4_1 {

constexpr int kBlock = 32, kBlockBytes = 20, kUnitBytes = 640;
constexpr uint8_t kPadding[kBlockBytes] = {};

inline void decode(int k, const uint8_t* row, float* out) {
  for (int i = 0; i < k; i += kBlock, row += kBlockBytes, out += kBlock) {
    const float d = f16_to_f32(load_u16(row)), m = f16_to_f32(load_u16(row + 2));
    for (int j = 0; j < 16; j++) {
      out[j] = d * float(row[4 + j] & 15) + m;
      out[j + 16] = d * float(row[4 + j] >> 4) + m;
    }
  }
}

inline void pack(int k, const uint8_t* const rows[kTileRows], uint8_t* tile) {
  for (int b = 0; b < k / kBlock; b++, tile += kUnitBytes) {
    const auto block = [&](int r) { return rows[r] ? rows[r] + size_t(b) * kBlockBytes : kPadding; };
    for (int r = 0; r < kTileRows; r++) {
      store_u16(tile + 2 * r, load_u16(block(r)));
      store_u16(tile + 64 + 2 * r, load_u16(block(r) + 2));
    }
    for (int r = 0; r < 16; r++) nibbles::pack_rows(block(r) + 4, block(r + 16) + 4, r, tile + 128);
  }
}

inline void unpack(int k, const uint8_t* tile, uint8_t* const rows[kTileRows]) {
  for (int b = 0; b < k / kBlock; b++, tile += kUnitBytes) {
    for (int r = 0; r < kTileRows; r++) {
      if (!rows[r]) continue;
      uint8_t* to = rows[r] + size_t(b) * kBlockBytes;
      store_u16(to, load_u16(tile + 2 * r));
      store_u16(to + 2, load_u16(tile + 64 + 2 * r));
      nibbles::unpack_row(tile + 128, r % 16, r / 16 * 4, to + 4);
    }
  }
}

}  // namespace freetoken::q4_1
