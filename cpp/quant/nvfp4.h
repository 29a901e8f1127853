// NVFP4: e2m1 codes, an e4m3 scale per 16 k, an fp32 scale per matrix; weight = (code * scale) * matrix scale, one
// rounding (the product of code and scale is exact). Not among WeightFormat: no loader makes it yet.
//
// Source row of K weights (a multiple of 16): the matrix's fp32 scale, then K / 16 blocks of 9 bytes: e4m3, then 8 bytes
// of codes; byte i has code 2 i in its low nibble and 2 i + 1 in its high one.
// T32: a tile starts with a head of 128 bytes, the fp32 scale of rows 0..31 (a row has its own, since interleaved
// matrices have different ones). Then units of 32 k, 576 bytes: e4m3 of rows 0..31 for the first 16 k, the same for the
// other 16, and the granules of nibbles.h. An odd K / 16 is padded with a block of scale 0.
#pragma once
#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/dtype.h"
#include "core/memory.h"
#include "quant/format.h"
#include "quant/nibbles.h"

namespace freetoken::nvfp4 {

constexpr int kBlock = 16, kBlockBytes = 9, kUnitK = 32, kUnitBytes = 576, kHeadBytes = 128;
constexpr float kValues[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
constexpr float kLargestScale = 448.0f;

constexpr size_t source_row_bytes(int k) { return 4 + size_t(k) / kBlock * kBlockBytes; }
constexpr size_t tile_bytes(int k) { return kHeadBytes + size_t(ceil_div(k, kUnitK)) * kUnitBytes; }

inline float e2m1_to_f32(int code) { return code & 8 ? -kValues[code & 7] : kValues[code & 7]; }

// e4m3 without infinities: 0x7f and 0xff are NaN.
inline float e4m3_to_f32(uint8_t v) {
  if ((v & 0x7f) == 0x7f) return NAN;
  const float magnitude = f16_to_f32(uint16_t((v & 0x7f) << 7)) * 256.0f;  // the same bits with f16's bias of 15
  return v & 0x80 ? -magnitude : magnitude;
}

inline float matrix_scale(const uint8_t* row) { return std::bit_cast<float>(load_u32(row)); }

inline void decode(int k, const uint8_t* row, float* out) {
  const float matrix = matrix_scale(row);
  row += 4;
  for (int i = 0; i < k; i += kBlock, row += kBlockBytes, out += kBlock) {
    const float scale = e4m3_to_f32(row[0]);
    for (int j = 0; j < kBlock; j++) out[j] = e2m1_to_f32(row[1 + j / 2] >> 4 * (j % 2) & 15) * scale * matrix;
  }
}

// The nearest of the values v[0..n), ascending; of two at one distance the even index.
inline int nearest(float x, const float* v, int n) {
  int i = int(std::lower_bound(v, v + n, x) - v);
  if (i == n) return n - 1;
  if (i > 0 && (x - v[i - 1] < v[i] - x || (x - v[i - 1] == v[i] - x && i % 2))) i--;
  return i;
}

// A block's scale is max / 6 over the matrix's, rounded to e4m3; codes are rounded to the nearest, ties to even.
inline void encode(int k, const float* x, float matrix, uint8_t* row) {
  float scales[127];
  for (int i = 0; i < 127; i++) scales[i] = e4m3_to_f32(uint8_t(i));
  store_u32(row, std::bit_cast<uint32_t>(matrix));
  row += 4;
  for (int i = 0; i < k; i += kBlock, row += kBlockBytes, x += kBlock) {
    float most = 0.0f;
    for (int j = 0; j < kBlock; j++) most = std::max(most, std::fabs(x[j]));
    row[0] = uint8_t(nearest(std::min(most / 6.0f / matrix, kLargestScale), scales, 127));
    const float step = scales[row[0]] * matrix;
    for (int j = 0; j < kBlock; j++) {
      const int code = step > 0.0f ? nearest(std::fabs(x[j]) / step, kValues, 8) : 0;
      const int bits = (code | (std::signbit(x[j]) ? 8 : 0)) << 4 * (j % 2);
      row[1 + j / 2] = uint8_t(j % 2 ? row[1 + j / 2] | bits : bits);
    }
  }
}

// A tile's row r at block b of the source; padding rows and blocks have scale 0 and codes 0.
constexpr uint8_t kPadding[kBlockBytes] = {};

// rows[r]: source bytes or null for a padding row; the tile is overwritten whole.
inline void pack(int k, const uint8_t* const rows[kTileRows], uint8_t* tile) {
  for (int r = 0; r < kTileRows; r++) store_u32(tile + 4 * r, rows[r] ? load_u32(rows[r]) : 0);
  tile += kHeadBytes;
  const int blocks = k / kBlock;
  for (int b = 0; b < blocks; b += 2, tile += kUnitBytes) {
    const auto block = [&](int r, int i) {
      return rows[r] && b + i < blocks ? rows[r] + 4 + size_t(b + i) * kBlockBytes : kPadding;
    };
    for (int i = 0; i < 2; i++) {
      for (int r = 0; r < kTileRows; r++) tile[32 * i + r] = block(r, i)[0];
      for (int r = 0; r < kTileRows / 2; r++) {
        const uint8_t *low = block(r, i) + 1, *high = block(r + 16, i) + 1;
        for (int j = 0; j < kBlock; j++) {
          const int shift = 4 * (j % 2);
          tile[64 + (4 * i + j / 4) * 64 + 4 * r + j % 4] =
              uint8_t((low[j / 2] >> shift & 15) | (high[j / 2] >> shift & 15) << 4);
        }
      }
    }
  }
}

inline void unpack(int k, const uint8_t* tile, uint8_t* const rows[kTileRows]) {
  for (int r = 0; r < kTileRows; r++) {
    if (!rows[r]) continue;
    store_u32(rows[r], load_u32(tile + 4 * r));
    for (int b = 0; b < k / kBlock; b++) {
      const uint8_t* unit = tile + kHeadBytes + size_t(b / 2) * kUnitBytes;
      uint8_t* to = rows[r] + 4 + size_t(b) * kBlockBytes;
      to[0] = unit[32 * (b % 2) + r];
      for (int j = 0; j < kBlock; j += 2) {
        const uint8_t* from = unit + 64 + (4 * (b % 2) + j / 4) * 64 + 4 * (r % 16) + j % 4;
        const int shift = r / 16 * 4;
        to[1 + j / 2] = uint8_t((from[0] >> shift & 15) | (from[1] >> shift & 15) << 4);
      }
    }
  }
}

}  // namespace freetoken::nvfp4
