// T32 weights as A fragments of mma.m16n8k16, straight from the packed bytes.
//
// A warp works on a pair of tiles (64 rows). Lane l has t = l % 4, q = l / 4 % 4 and tile l / 16 of the pair. In each
// 16 k it holds k = 4 t .. 4 t + 3 (so the B fragment of a column is four consecutive x), in rows 4 q .. 4 q + 3 of
// both halves of its tile: 16 bytes of one granule are those four rows. Row g of mma tile j (of 4) is row 4 q + j of
// half 0 and row g + 8 the same of half 1. So of accumulator d[4] and columns 2 t, 2 t + 1: d[0], d[1] are of half 0,
// d[2], d[3] of half 1 (in a gate/up matrix a gate and its up in one lane), over j four consecutive output rows.
//
// A Fragment holds kStepK k: load() reads it, load_tail() where K ends inside (formats without blocks), multiply() adds
// it to acc[j][column tile][d] by the formula of matmul.h. b[column tile][16 k][2]: B fragments of bf16 x.
#pragma once
#include "cuda/kernels/t32_expand.h"
#include "quant/format.h"

namespace freetoken::cuda {

struct LanePlace {
  int tile, q, t;
};
FT_DEV LanePlace lane_place(int lane) { return {lane >> 4, lane >> 2 & 3, lane & 3}; }

FT_DEV uint32_t word(const uint4& v, int j) { return j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w; }
FT_DEV float half_of(const uint2& v, int j) {  // f16 j of four
  const uint32_t pair = j < 2 ? v.x : v.y;
  return f16_to_float(uint16_t(j & 1 ? pair >> 16 : pair));
}

// part scaled by one factor a row, into the sum.
FT_DEV void add_scaled(float (&acc)[4], const float (&part)[4], float scale0, float scale1) {
  acc[0] = fmaf(scale0, part[0], acc[0]);
  acc[1] = fmaf(scale0, part[1], acc[1]);
  acc[2] = fmaf(scale1, part[2], acc[2]);
  acc[3] = fmaf(scale1, part[3], acc[3]);
}

// Formats with one more scale per output row, in the tile's head, say so by kRowScales (nvfp4 only).
template <WeightFormat F>
struct Fragment;

template <class Weights>
FT_DEV void scale_rows(const uint8_t* tile, int half, int q, float (&v)[4]) {
  if constexpr (Weights::kRowScales) {
    if (!tile) return;
    const float4 s = load16_float(reinterpret_cast<const float*>(tile) + half * 16 + q * 4);
    v[0] *= s.x, v[1] *= s.y, v[2] *= s.z, v[3] *= s.w;
  }
}

template <>
struct Fragment<WeightFormat::kBF16> {
  static constexpr int kStepK = 16;
  static constexpr bool kRowScales = false;
  uint4 half0[2], half1[2];

  FT_DEV void load(const uint8_t* tile, const LanePlace& at, int k0) {
    const uint8_t* p = tile + (size_t(k0 / 2) + 2 * at.t) * 128 + at.q * 16;
    for (int i = 0; i < 2; i++) {
      half0[i] = load16_stream(p + 128 * i);
      half1[i] = load16_stream(p + 128 * i + 64);
    }
  }
  FT_DEV void load_tail(const uint8_t* tile, const LanePlace& at, int k0, int k) {
    for (int i = 0; i < 2; i++) {
      const int unit = k0 / 2 + 2 * at.t + i;
      const bool inside = unit < (k + 1) / 2;
      const uint8_t* p = tile + size_t(unit) * 128 + at.q * 16;
      half0[i] = inside ? load16_stream(p) : uint4{0, 0, 0, 0};
      half1[i] = inside ? load16_stream(p + 64) : uint4{0, 0, 0, 0};
    }
  }
  template <int Columns>
  FT_DEV void multiply(const uint32_t (&b)[Columns][1][2], float (&acc)[4][Columns][4]) const {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const uint32_t a[4] = {word(half0[0], j), word(half1[0], j), word(half0[1], j), word(half1[1], j)};
#pragma unroll
      for (int c = 0; c < Columns; c++) mma_m16n8k16(acc[j][c], a, b[c][0]);
    }
  }
};

// Formats with one f16 scale per row and 32 k, and all of a block's codes in two loads (4-bit) or four (8-bit).
template <WeightFormat F>
struct BlockFragment {
  static constexpr int kStepK = 32;
  static constexpr bool kRowScales = false;
  static constexpr bool kBytes = F == WeightFormat::kQ8_0, kMin = F == WeightFormat::kQ4_1;
  static constexpr int kUnitBytes = traits(F).unit_bytes;
  static constexpr int kCodes = kMin ? 128 : 64;  // where the granules start
  uint4 codes[kBytes ? 4 : 2];
  uint2 scale0, scale1, min0, min1;

  FT_DEV void load(const uint8_t* tile, const LanePlace& at, int k0) {
    const uint8_t* p = tile + size_t(k0 / 32) * kUnitBytes;
    scale0 = load8(p + at.q * 8);
    scale1 = load8(p + 32 + at.q * 8);
    if constexpr (kMin) {
      min0 = load8(p + 64 + at.q * 8);
      min1 = load8(p + 96 + at.q * 8);
    }
    p += kCodes + at.q * 16;
    for (int i = 0; i < 2; i++) {
      if constexpr (kBytes) {
        codes[2 * i] = load16_stream(p + (4 * i + at.t) * 128);
        codes[2 * i + 1] = load16_stream(p + (4 * i + at.t) * 128 + 64);
      } else {
        codes[i] = load16_stream(p + (4 * i + at.t) * 64);
      }
    }
  }
  FT_DEV void load_tail(const uint8_t* tile, const LanePlace& at, int k0, int) { load(tile, at, k0); }

  // A fragment of mma tile j, 16 k number i of the block.
  FT_DEV void expand(int i, int j, uint32_t (&a)[4]) const {
    if constexpr (kBytes) {
      expand_bytes(word(codes[2 * i], j), a[0], a[2]);
      expand_bytes(word(codes[2 * i + 1], j), a[1], a[3]);
    } else {
      constexpr int kBias = kMin ? 0 : 8;
      const uint32_t w = word(codes[i], j);
      expand_codes<kBias>(w & 0x0f0f0f0fu, a[0], a[2]);
      expand_codes<kBias>(w >> 4 & 0x0f0f0f0fu, a[1], a[3]);
    }
  }
  template <int Columns>
  FT_DEV void multiply(const uint32_t (&b)[Columns][2][2], float (&acc)[4][Columns][4]) const {
    float sums[kMin ? Columns : 1][4];  // of x, the same in every row
    if constexpr (kMin) {
      const uint32_t ones[4] = {kBf16Ones, kBf16Ones, kBf16Ones, kBf16Ones};
#pragma unroll
      for (int c = 0; c < Columns; c++) {
        for (float& s : sums[c]) s = 0.0f;
        mma_m16n8k16(sums[c], ones, b[c][0]);
        mma_m16n8k16(sums[c], ones, b[c][1]);
      }
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
      uint32_t a[2][4];
      expand(0, j, a[0]);
      expand(1, j, a[1]);
#pragma unroll
      for (int c = 0; c < Columns; c++) {
        float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        mma_m16n8k16(part, a[0], b[c][0]);
        mma_m16n8k16(part, a[1], b[c][1]);
        add_scaled(acc[j][c], part, half_of(scale0, j), half_of(scale1, j));
        if constexpr (kMin) add_scaled(acc[j][c], sums[c], half_of(min0, j), half_of(min1, j));
      }
    }
  }
};
template <>
struct Fragment<WeightFormat::kQ4_0> : BlockFragment<WeightFormat::kQ4_0> {};
template <>
struct Fragment<WeightFormat::kQ4_1> : BlockFragment<WeightFormat::kQ4_1> {};
template <>
struct Fragment<WeightFormat::kQ8_0> : BlockFragment<WeightFormat::kQ8_0> {};

template <>
struct Fragment<WeightFormat::kQ6_K> {
  static constexpr int kStepK = 16;
  static constexpr bool kRowScales = false;
  static constexpr int kUnitBytes = traits(WeightFormat::kQ6_K).unit_bytes;
  static constexpr int kScales = 64, kGroups = 576, kGroupBytes = 192;
  uint4 low, high;
  uint2 d0, d1;
  uint32_t scales0, scales1;  // four int8 each
  int shift;                  // of this lane's granule in `high`

  FT_DEV void load(const uint8_t* tile, const LanePlace& at, int k0) {
    const uint8_t* p = tile + size_t(k0 / 256) * kUnitBytes;
    const int block = k0 % 256 / 16;
    d0 = load8(p + at.q * 8);
    d1 = load8(p + 32 + at.q * 8);
    scales0 = load4(p + kScales + 32 * block + 4 * at.q);
    scales1 = load4(p + kScales + 32 * block + 16 + 4 * at.q);
    p += kGroups + (2 * block + (at.t >> 1)) * kGroupBytes + at.q * 16;
    low = load16_stream(p + (at.t & 1) * 64);
    high = load16_stream(p + 128);  // of both granules of the group; lanes t and t + 1 read the same
    shift = 4 * (at.t & 1);
  }
  FT_DEV void load_tail(const uint8_t* tile, const LanePlace& at, int k0, int) { load(tile, at, k0); }

  FT_DEV static float scale(const uint2& d, uint32_t scales, int j) {
    return half_of(d, j) * float(int32_t(int8_t(scales >> (8 * j) & 0xff)));
  }
  template <int Columns>
  FT_DEV void multiply(const uint32_t (&b)[Columns][1][2], float (&acc)[4][Columns][4]) const {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const uint32_t l = word(low, j), h = word(high, j) >> shift;
      uint32_t a[4];
      expand_codes<32>((l & 0x0f0f0f0fu) | (h & 0x03030303u) << 4, a[0], a[2]);
      expand_codes<32>((l >> 4 & 0x0f0f0f0fu) | (h & 0x0c0c0c0cu) << 2, a[1], a[3]);
      const float s0 = scale(d0, scales0, j), s1 = scale(d1, scales1, j);
#pragma unroll
      for (int c = 0; c < Columns; c++) {
        float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        mma_m16n8k16(part, a, b[c][0]);
        add_scaled(acc[j][c], part, s0, s1);
      }
    }
  }
};

}  // namespace freetoken::cuda
