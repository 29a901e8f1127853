// matmul_tiles, the definition: the arithmetic of matmul.h written out on the unpacked weights of 32 k at a time.
// Sums between blocks wait in out[m], which holds fp32 exactly.
#pragma once
#include <cmath>
#include <cstring>

#include "core/dtype.h"
#include "kernels/matmul.h"
#include "quant/bytes.h"
#include "quant/q4_0.h"
#include "quant/q4_1.h"
#include "quant/q6_k.h"
#include "quant/q8_0.h"

namespace freetoken::FT_ISA {
namespace {

// 32 k of a tile: integer weights without their zero point, w[j][row]; scale[i] belongs to k 16 i .. 16 i + 15.
struct Codes {
  int16_t w[32][kTileRows];
  float scale[2][kTileRows];
  float min[kTileRows];
};

int nibble(const uint8_t* granules, int row, int j) {
  return granules[j / 4 * 64 + row % 16 * 4 + j % 4] >> (row / 16 * 4) & 15;
}

void load_codes(WeightFormat format, const uint8_t* tile, int block, Codes& c) {
  for (int r = 0; r < kTileRows; r++) {
    const auto half = [&](const uint8_t* p) { return f16_to_f32(load_u16(p + 2 * r)); };
    c.min[r] = 0;
    switch (format) {
      case WeightFormat::kQ8_0: {
        const uint8_t* unit = tile + size_t(block) * q8_0::kUnitBytes;
        c.scale[0][r] = c.scale[1][r] = half(unit);
        for (int j = 0; j < 32; j++) c.w[j][r] = int16_t(unit[64 + j / 4 * 128 + r * 4 + j % 4] - 128);
        break;
      }
      case WeightFormat::kQ4_0: {
        const uint8_t* unit = tile + size_t(block) * q4_0::kUnitBytes;
        c.scale[0][r] = c.scale[1][r] = half(unit);
        for (int j = 0; j < 32; j++) c.w[j][r] = int16_t(nibble(unit + 64, r, j) - 8);
        break;
      }
      case WeightFormat::kQ4_1: {
        const uint8_t* unit = tile + size_t(block) * q4_1::kUnitBytes;
        c.scale[0][r] = c.scale[1][r] = half(unit);
        c.min[r] = half(unit + 64);
        for (int j = 0; j < 32; j++) c.w[j][r] = int16_t(nibble(unit + 128, r, j));
        break;
      }
      default: {  // Q6_K
        const uint8_t* unit = tile + size_t(block / 8) * q6_k::kUnitBytes;
        const int8_t* scales = reinterpret_cast<const int8_t*>(unit + q6_k::kUnitScales) + 64 * (block % 8);
        for (int i = 0; i < 2; i++) c.scale[i][r] = half(unit) * float(scales[32 * i + r]);
        for (int j = 0; j < 32; j++) {
          const uint8_t* group = unit + q6_k::kUnitGroups + 192 * (block % 8 * 4 + j / 8);
          const int high = group[128 + r % 16 * 4 + j % 4] >> (j / 4 % 2 * 4 + r / 16 * 2) & 3;
          c.w[j][r] = int16_t((nibble(group, r, j % 8) | high << 4) - 32);
        }
      }
    }
  }
}

// Decoded weights of k 32 block .. 32 block + count - 1.
void load_values(WeightFormat format, const uint8_t* tile, int block, int count, float (*v)[kTileRows]) {
  if (format == WeightFormat::kF32) {
    std::memcpy(v, tile + size_t(block) * 32 * 128, size_t(count) * 128);
    return;
  }
  if (format == WeightFormat::kF16 || format == WeightFormat::kBF16) {
    for (int j = 0; j < count; j++)
      for (int r = 0; r < kTileRows; r++) {
        const uint16_t h = load_u16(tile + (size_t(block) * 16 + j / 2) * 128 + r * 4 + j % 2 * 2);
        v[j][r] = format == WeightFormat::kF16 ? f16_to_f32(h) : bf16_to_f32(h);
      }
    return;
  }
  Codes c;
  load_codes(format, tile, block, c);
  for (int j = 0; j < count; j++)
    for (int r = 0; r < kTileRows; r++) {
      v[j][r] = float(c.w[j][r]) * c.scale[j / 16][r];
      if (format == WeightFormat::kQ4_1) v[j][r] += c.min[r];
    }
}

void add_products(const float* w, float x, float* acc) {
  for (int r = 0; r < kTileRows; r++) acc[r] = std::fma(w[r], x, acc[r]);
}

void add_f32(const float (*v)[kTileRows], int count, const uint8_t* row, float* acc) {
  for (int j = 0; j < count; j++) add_products(v[j], std::bit_cast<float>(load_u32(row + 4 * j)), acc);
}

void add_bf16(const float (*v)[kTileRows], int count, const uint8_t* row, float* acc) {  // count is even
  for (int j = 0; j < count; j += 2) {
    add_products(v[j + 1], bf16_to_f32(load_u16(row + 2 * j + 2)), acc);
    add_products(v[j], bf16_to_f32(load_u16(row + 2 * j)), acc);
  }
}

void add_integer(ActivationKind kind, const Codes& c, const uint8_t* record, float* acc) {
  const float s = std::bit_cast<float>(load_u32(record + 32));
  int32_t sum[2][kTileRows] = {};
  for (int j = 0; j < 32; j++)
    for (int r = 0; r < kTileRows; r++) sum[j / 16][r] += c.w[j][r] * int8_t(record[j]);
  for (int r = 0; r < kTileRows; r++) {
    if (kind == ActivationKind::kBlocks16) {
      for (int i = 0; i < 2; i++) acc[r] = std::fma(float(sum[i][r]), c.scale[i][r] * s, acc[r]);
      continue;
    }
    acc[r] = std::fma(float(sum[0][r] + sum[1][r]), c.scale[0][r] * s, acc[r]);
    if (kind == ActivationKind::kMin) acc[r] = std::fma(c.min[r], std::bit_cast<float>(load_u32(record + 36)), acc[r]);
  }
}

void matmul_tiles(const PackedMatrix& w, int tile_begin, int tile_end, int rows, ActivationKind kind,
                  const uint8_t* const* activations, float* const* out, const uint8_t*) {
  const bool integer = kind != ActivationKind::kF32 && kind != ActivationKind::kBF16;
  const int k = kind == ActivationKind::kBF16 ? w.k + w.k % 2 : w.k;
  Codes codes;
  float values[32][kTileRows];
  for (int t = tile_begin; t < tile_end; t++) {
    const uint8_t* tile = w.data + size_t(t) * tile_bytes(w.format, w.k);
    for (int m = 0; m < rows; m++) std::memset(out[m] + size_t(t) * kTileRows, 0, kTileRows * sizeof(float));
    for (int b = 0; b * 32 < k; b++) {
      const int count = k - b * 32 < 32 ? k - b * 32 : 32;
      if (integer)
        load_codes(w.format, tile, b, codes);
      else
        load_values(w.format, tile, b, count, values);
      for (int m = 0; m < rows; m++) {
        float* acc = out[m] + size_t(t) * kTileRows;
        if (integer)
          add_integer(kind, codes, activations[m] + size_t(b) * (kind == ActivationKind::kBlocks16 ? 44 : 40), acc);
        else if (kind == ActivationKind::kBF16)
          add_bf16(values, count, activations[m] + size_t(b) * 64, acc);
        else
          add_f32(values, count, activations[m] + size_t(b) * 128, acc);
      }
    }
  }
}

}  // namespace
}  // namespace freetoken::FT_ISA
