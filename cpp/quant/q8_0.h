// Q8_0. Source block of 32 k: fp16 d, int8 q[32]; weight = q * d.
// T32 unit of 32 k, 1088 bytes: fp16 d of rows 0..31, then 8 granules of 4 k: byte 4 r + j is row r's q[4 g + j] + 128.
// The stored code is unsigned because the dot-product instructions take the weight as their unsigned operand.
#pragma once
#include "core/dtype.h"
#include "quant/bytes.h"
#include "quant/format.h"

namespace freetoken::q8_0 {

constexpr int kBlock = 32, kBlockBytes = 34, kUnitBytes = 1088;
constexpr uint32_t kFlip = 0x80808080u;  // q + 128 and q differ in the top bit only

inline void decode(int k, const uint8_t* row, float* out) {
  for (int i = 0; i < k; i += kBlock, row += kBlockBytes, out += kBlock) {
    const float d = f16_to_f32(load_u16(row));
    for (int j = 0; j < kBlock; j++) out[j] = float(int8_t(row[2 + j])) * d;
  }
}

inline void pack(int k, const uint8_t* const rows[kTileRows], uint8_t* tile) {
  for (int b = 0; b < k / kBlock; b++, tile += kUnitBytes) {
    for (int r = 0; r < kTileRows; r++) {
      const uint8_t* from = rows[r] ? rows[r] + size_t(b) * kBlockBytes : nullptr;
      store_u16(tile + 2 * r, from ? load_u16(from) : 0);
      for (int g = 0; g < 8; g++)
        store_u32(tile + 64 + g * 128 + 4 * r, from ? load_u32(from + 2 + 4 * g) ^ kFlip : kFlip);
    }
  }
}

inline void unpack(int k, const uint8_t* tile, uint8_t* const rows[kTileRows]) {
  for (int b = 0; b < k / kBlock; b++, tile += kUnitBytes) {
    for (int r = 0; r < kTileRows; r++) {
      if (!rows[r]) continue;
      uint8_t* to = rows[r] + size_t(b) * kBlockBytes;
      store_u16(to, load_u16(tile + 2 * r));
      for (int g = 0; g < 8; g++) store_u32(to + 2 + 4 * g, load_u32(tile + 64 + g * 128 + 4 * r) ^ kFlip);
    }
  }
}

}  // namespace freetoken::q8_0
