// Q6_K. Source block of 256 k: ql[128], qh[64], int8 scales[16], fp16 d. Element e = 128 n + 32 j + l has
//   code = (ql[64 n + 32 (j % 2) + l] >> 4 (j / 2) & 15) | (qh[32 n + l] >> 2 j & 3) << 4, in 0..63,
//   weight = (d * scales[e / 16]) * (code - 32).
// T32 unit of 256 k, 6720 bytes: fp16 d of rows 0..31; int8 scales[16][32 rows]; then 32 groups of 8 k, 192 bytes each:
// two granules of low nibbles (as nibbles.h), then 64 bytes of high bits: byte 4 r + j holds, from bit 0 up, two bits
// of (granule 0, row r), (granule 0, row 16 + r), (granule 1, row r), (granule 1, row 16 + r).
#pragma once
#include "core/dtype.h"
#include "quant/bytes.h"
#include "quant/format.h"

namespace freetoken::q6_k {

constexpr int kBlock = 256, kBlockBytes = 210, kUnitBytes = 6720;
constexpr int kHighBits = 128, kScales = 192, kScale = 208;  // offsets in a source block
constexpr int kUnitScales = 64, kUnitGroups = 576;           // offsets in a unit
constexpr uint32_t kLow = 0x0f0f0f0fu, kTwo = 0x03030303u;

inline void decode(int k, const uint8_t* row, float* out) {
  for (int i = 0; i < k; i += kBlock, row += kBlockBytes, out += kBlock) {
    const float d = f16_to_f32(load_u16(row + kScale));
    for (int e = 0; e < kBlock; e++) {
      const int n = e / 128, j = e / 32 % 4, l = e % 32;
      const int low = row[64 * n + 32 * (j % 2) + l] >> 4 * (j / 2) & 15;
      const int high = row[kHighBits + 32 * n + l] >> 2 * j & 3;
      out[e] = d * float(int8_t(row[kScales + e / 16])) * float((low | high << 4) - 32);
    }
  }
}

// Where granule g (0..63) of a source block lies: four codes are in a 32-bit word at these offsets and shifts.
struct Place {
  int low, low_shift, high, high_shift;
};
constexpr Place place(int g) {
  const int n = g / 32, j = g / 8 % 4, l = g % 8 * 4;
  return {64 * n + 32 * (j % 2) + l, 4 * (j / 2), kHighBits + 32 * n + l, 2 * j};
}

inline void pack(int k, const uint8_t* const rows[kTileRows], uint8_t* tile) {
  for (int b = 0; b < k / kBlock; b++, tile += kUnitBytes) {
    const auto block = [&](int r) { return rows[r] ? rows[r] + size_t(b) * kBlockBytes : nullptr; };
    const auto low = [](const uint8_t* p, int g) {
      return p ? load_u32(p + place(g).low) >> place(g).low_shift & kLow : 0;
    };
    const auto high = [](const uint8_t* p, int g) {  // a padding row has code 32, weight 0
      return p ? load_u32(p + place(g).high) >> place(g).high_shift & kTwo : 0x02020202u;
    };
    for (int r = 0; r < kTileRows; r++) {
      const uint8_t* p = block(r);
      store_u16(tile + 2 * r, p ? load_u16(p + kScale) : 0);
      for (int s = 0; s < 16; s++) tile[kUnitScales + 32 * s + r] = p ? p[kScales + s] : 0;
    }
    for (int r = 0; r < 16; r++) {
      const uint8_t *p = block(r), *q = block(r + 16);
      for (int i = 0; i < 32; i++) {
        uint8_t* to = tile + kUnitGroups + 192 * i + 4 * r;
        store_u32(to, low(p, 2 * i) | low(q, 2 * i) << 4);
        store_u32(to + 64, low(p, 2 * i + 1) | low(q, 2 * i + 1) << 4);
        store_u32(to + 128, high(p, 2 * i) | high(q, 2 * i) << 2 | high(p, 2 * i + 1) << 4 | high(q, 2 * i + 1) << 6);
      }
    }
  }
}

inline void unpack(int k, const uint8_t* tile, uint8_t* const rows[kTileRows]) {
  for (int b = 0; b < k / kBlock; b++, tile += kUnitBytes) {
    for (int r = 0; r < kTileRows; r++) {
      if (!rows[r]) continue;
      uint8_t* to = rows[r] + size_t(b) * kBlockBytes;
      std::memset(to, 0, kScales);
      for (int s = 0; s < 16; s++) to[kScales + s] = tile[kUnitScales + 32 * s + r];
      store_u16(to + kScale, load_u16(tile + 2 * r));
      const int half = r / 16;
      for (int g = 0; g < 64; g++) {
        const uint8_t* from = tile + kUnitGroups + 192 * (g / 2) + 4 * (r % 16);
        const uint32_t low = load_u32(from + 64 * (g % 2)) >> 4 * half & kLow;
        const uint32_t high = load_u32(from + 128) >> (4 * (g % 2) + 2 * half) & kTwo;
        const Place p = place(g);
        store_u32(to + p.low, load_u32(to + p.low) | low << p.low_shift);
        store_u32(to + p.high, load_u32(to + p.high) | high << p.high_shift);
      }
    }
  }
}

}  // namespace freetoken::q6_k
