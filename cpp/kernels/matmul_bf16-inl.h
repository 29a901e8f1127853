// bf16 weights and activations with vdpbf16ps: 32 output rows x kRows activation rows, a pair of k per instruction.
#pragma once
#include "kernels/matmul_driver-inl.h"
#include "kernels/matmul_vec-inl.h"

namespace freetoken::FT_ISA {
namespace {

// Intel's vdpbf16ps does half the work of its fma (measured on a Xeon of model 207: a quarter of the instructions a
// second at twice the products), AMD's twice. With many rows Intel is faster through fp32; the sums are the same bits.
inline bool fma_beats_vdpbf16() { return __builtin_cpu_is("intel"); }
constexpr int kBf16ValueRows = 13;

template <int kRows>
void bf16_tile(const TileArgs& t) {
  constexpr int kStep = 4;  // pairs between prefetches
  Floats sum[kRows][2];
  const uint8_t* x[kRows];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; m++) {
    x[m] = t.activations[m] + t.activation_offset;
    sum[m][0] = t.accumulate ? load(t.out[m] + t.column) : zero();
    sum[m][1] = t.accumulate ? load(t.out[m] + t.column + 16) : zero();
  }
  const uint8_t *w = t.weights, *ahead = t.prefetch;
  const auto add_pair = [&](const uint8_t* pair, size_t at) __attribute__((always_inline)) {
    const __m512bh w0 = __m512bh(load_bytes(pair)), w1 = __m512bh(load_bytes(pair + 64));
#pragma GCC unroll 16
    for (int m = 0; m < kRows; m++) {
      const __m512bh v = __m512bh(broadcast_int(x[m] + at));
      sum[m][0] = _mm512_dpbf16_ps(sum[m][0], w0, v);
      sum[m][1] = _mm512_dpbf16_ps(sum[m][1], w1, v);
    }
  };
  int u = 0;
  size_t at = 0;
  for (; u + kStep <= t.units; u += kStep, w += 128 * kStep, at += 4 * kStep) {
    prefetch(ahead, t.prefetch_lines);
    ahead += t.prefetch_step;
#pragma GCC unroll 4
    for (int i = 0; i < kStep; i++) add_pair(w + 128 * i, at + 4 * size_t(i));
  }
  for (; u < t.units; u++, w += 128, at += 4) add_pair(w, at);
#pragma GCC unroll 16
  for (int m = 0; m < kRows; m++) {
    store(t.out[m] + t.column, sum[m][0]);
    store(t.out[m] + t.column + 16, sum[m][1]);
  }
}

struct Bf16Kernel {
  static constexpr int kMaxRows = 12, kUnitBytes = 128, kUnitRecordBytes = 4, kPrefetchBytes = 512;
  static int units(int k) { return (k + 1) / 2; }
  static constexpr TileFunction kTiles[kMaxRows] = {bf16_tile<1>, bf16_tile<2>,  bf16_tile<3>,  bf16_tile<4>,
                                                    bf16_tile<5>, bf16_tile<6>,  bf16_tile<7>,  bf16_tile<8>,
                                                    bf16_tile<9>, bf16_tile<10>, bf16_tile<11>, bf16_tile<12>};
};

}  // namespace
}  // namespace freetoken::FT_ISA
