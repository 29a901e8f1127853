// NVFP4 weights as A fragments of mma (layout: quant/nvfp4.h; lanes and rows: t32_fragment.h). Per 16 k: part = one mma
// over the codes, sum = fma(scale, part, sum); the sum over K times the row's scale.
#pragma once
#include "cuda/kernels/t32_fragment.h"

namespace freetoken::cuda {

// Four codes in the low 16 bits, nibbles (k, half 0), (k, half 1), (k + 1, half 0), (k + 1, half 1), to a bf16 pair of
// each half. A bf16 of 0, 0.5, 1, 1.5, 2, 3, 4, 6 is a byte of each of two tables of 8: a byte permutation looks it up.
FT_DEV void expand_e2m1(uint32_t codes, uint32_t& half0, uint32_t& half1) {
  const uint32_t index = codes & 0x7777u;
  const uint32_t low = __byte_perm(0xc0800000u, 0xc0804000u, index);
  const uint32_t high = __byte_perm(0x3f3f3f00u, 0x40404040u, index);
  half0 = __byte_perm(low, high, 0x6240) | (codes << 12 & 0x8000u) | (codes << 20 & 0x80000000u);
  half1 = __byte_perm(low, high, 0x7351) | (codes << 8 & 0x8000u) | (codes << 16 & 0x80000000u);
}

FT_DEV float e4m3_to_float(uint32_t v) {
  if ((v & 0x7fu) == 0x7fu) return __uint_as_float(0x7fc00000u);
  return f16_to_float(uint16_t((v & 0x7fu) << 7 | (v & 0x80u) << 8)) * 256.0f;
}

struct Nvfp4Fragment {
  static constexpr int kStepK = 16, kHeadBytes = 128, kUnitBytes = 576;
  static constexpr bool kRowScales = true;
  uint4 codes;
  uint32_t scales0, scales1;  // four e4m3 each

  FT_DEV void load(const uint8_t* tile, const LanePlace& at, int k0) {
    const uint8_t* p = tile + kHeadBytes + size_t(k0 / 32) * kUnitBytes;
    const int block = k0 / 16 % 2;
    scales0 = load4(p + 32 * block + 4 * at.q);
    scales1 = load4(p + 32 * block + 16 + 4 * at.q);
    codes = load16_stream(p + 64 + (4 * block + at.t) * 64 + at.q * 16);
  }
  FT_DEV void load_tail(const uint8_t* tile, const LanePlace& at, int k0, int) { load(tile, at, k0); }

  template <int Columns>
  FT_DEV void multiply(const uint32_t (&b)[Columns][1][2], float (&acc)[4][Columns][4]) const {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const uint32_t w = word(codes, j);
      uint32_t a[4];
      expand_e2m1(w & 0xffffu, a[0], a[1]);
      expand_e2m1(w >> 16, a[2], a[3]);
      const float s0 = e4m3_to_float(scales0 >> (8 * j) & 0xffu), s1 = e4m3_to_float(scales1 >> (8 * j) & 0xffu);
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
