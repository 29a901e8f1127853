// Matmuls whose x stays fp32: f32, f16 and bf16 weights. A block has one tile and Rows rows of x, a warp one piece of
// K. Lane l reads 16 bytes of granule l / 8 of four: rows 4 (l % 8) .. + 3, one k (f32) or two.
#pragma once
#include "cuda/kernels/matmul_job-inl.h"
#include "quant/format.h"

namespace freetoken::cuda {

struct F32Args {
  const float* x;
  int64_t x_stride;
  int rows, k, n, partition_k;
  const uint8_t* weight;
  int64_t tile_bytes;
  const float* bias;
  float* out;
  int64_t out_stride;
  float scale, softcap;
};

template <WeightFormat F>
FT_DEV void decode_pair(uint32_t w, float (&v)[2]) {
  if constexpr (F == WeightFormat::kF16) {
    v[0] = f16_to_float(uint16_t(w));
    v[1] = f16_to_float(uint16_t(w >> 16));
  } else {
    v[0] = bf16_low(w);
    v[1] = bf16_high(w);
  }
}

template <WeightFormat F, int Rows>
__global__ void __launch_bounds__(256) matmul_f32(const F32Args args) {
  constexpr int kUnitK = F == WeightFormat::kF32 ? 1 : 2;
  FT_SHARED(float4, sums, [8][Rows][8]);
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, pieces = int(blockDim.x) / 32;
  const int granule = lane / 8, four = lane % 8, row0 = int(blockIdx.y) * Rows;
  const int first = warp * args.partition_k, last = min(first + args.partition_k, args.k);
  const uint8_t* w = args.weight + blockIdx.x * args.tile_bytes + four * 16;
  float acc[Rows][4] = {};
  const float* x[Rows];
#pragma unroll
  for (int r = 0; r < Rows; r++) x[r] = args.x + int64_t(min(row0 + r, args.rows - 1)) * args.x_stride;
#pragma unroll 4
  for (int k = first + granule * kUnitK; k < last; k += 4 * kUnitK) {
    const uint4 u = load16_stream(w + size_t(k / kUnitK) * 128);
    const uint32_t words[4] = {u.x, u.y, u.z, u.w};
    const bool second = kUnitK == 2 && k + 1 < args.k;
#pragma unroll
    for (int r = 0; r < Rows; r++) {
      const float x0 = x[r][k], x1 = second ? x[r][k + 1] : 0.0f;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        if constexpr (kUnitK == 1) {
          acc[r][j] = fmaf(__uint_as_float(words[j]), x0, acc[r][j]);
        } else {
          float v[2];
          decode_pair<F>(words[j], v);
          acc[r][j] = fmaf(v[0], x0, acc[r][j]);
          if (second) acc[r][j] = fmaf(v[1], x1, acc[r][j]);
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < Rows; r++) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      acc[r][j] += __shfl_xor_sync(~0u, acc[r][j], 8);
      acc[r][j] += __shfl_xor_sync(~0u, acc[r][j], 16);
    }
    if (granule == 0) store16(&sums[warp][r][four].x, make_float4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]));
  }
  __syncthreads();
  for (int i = int(threadIdx.x); i < Rows * 8; i += int(blockDim.x)) {
    const int r = i / 8, n0 = int(blockIdx.x) * 32 + i % 8 * 4;
    if (row0 + r >= args.rows) continue;
    float v[4] = {};
    for (int p = 0; p < pieces; p++) {
      const float4 s = load16_float(&sums[p][r][i % 8].x);
      v[0] += s.x, v[1] += s.y, v[2] += s.z, v[3] += s.w;
    }
    finish_row(args.bias, args.scale, args.softcap, n0, args.n, v);
    store_four(args.out + (row0 + r) * args.out_stride, n0, args.n, v);
  }
}

}  // namespace freetoken::cuda
