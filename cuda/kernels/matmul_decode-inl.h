// Few columns (up to 8): a block has one pair of tiles, a warp one piece of K. Weights go from memory straight into mma
// fragments, kDepth steps ahead; x comes from the cache.
#pragma once
#include "cuda/kernels/matmul_job-inl.h"
#include "cuda/kernels/t32_fragment.h"

namespace freetoken::cuda {

constexpr int kDecodeColumns = 8;

// Four consecutive x as the B fragment of a column; zeros past k and where there is no column.
FT_DEV float4 load_x(const float* row, int k0, int k) {
  if (!row || k0 >= k) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (k0 + 4 <= k) return load16_float(row + k0);
  return make_float4(row[k0], k0 + 1 < k ? row[k0 + 1] : 0.0f, k0 + 2 < k ? row[k0 + 2] : 0.0f, 0.0f);
}
FT_DEV void to_b(const float4& x, uint32_t (&b)[2]) {
  b[0] = pack_bf16x2(x.x, x.y);
  b[1] = pack_bf16x2(x.z, x.w);
}

template <class Weights>
__global__ void __launch_bounds__(256) matmul_decode(const MatmulArgs args) {
  constexpr int kStepK = Weights::kStepK, kBlocks = kStepK / 16, kDepth = 64 / kStepK;
  FT_SHARED(float4, sums, [8][4][32]);  // [piece][d][lane], the four are j
  MatmulJob job;
  if (!find_job(args, kDecodeColumns, job)) return;

  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, pieces = int(blockDim.x) / 32;
  const LanePlace at = lane_place(lane);
  const int tile = job.block * 2 + at.tile;
  float acc[4][1][4];
  for (auto& j : acc)
    for (float& v : j[0]) v = job.weight ? 0.0f : __uint_as_float(0x7fc00000u);
  if (job.weight) {
    const uint8_t* w = job.weight + min(tile, job.target.tiles - 1) * args.tile_bytes;
    const int column = lane / 4;
    const float* x = column < job.columns ? job_input(args, job_entry(job, column)) : nullptr;
    const int first = warp * args.partition_k, last = min(first + args.partition_k, args.k);
    const int steps = first < last ? (last - first + kStepK - 1) / kStepK : 0;
    Weights weights[kDepth];
    float4 xs[kDepth][kBlocks];
    auto load = [&](int d, int step) {
      const int k0 = first + step * kStepK;
      if (k0 + kStepK <= args.k) weights[d].load(w, at, k0);
      else weights[d].load_tail(w, at, k0, args.k);
#pragma unroll
      for (int i = 0; i < kBlocks; i++) xs[d][i] = load_x(x, k0 + 16 * i + 4 * at.t, args.k);
    };
#pragma unroll
    for (int d = 0; d < kDepth; d++)
      if (d < steps) load(d, d);
    for (int step = 0; step < steps; step += kDepth) {
#pragma unroll
      for (int d = 0; d < kDepth; d++) {
        if (step + d >= steps) break;
        uint32_t b[1][kBlocks][2];
#pragma unroll
        for (int i = 0; i < kBlocks; i++) to_b(xs[d][i], b[0][i]);
        weights[d].multiply(b, acc);
        if (step + d + kDepth < steps) load(d, step + d + kDepth);
      }
    }
  }
  for (int d = 0; d < 4; d++)
    store16(&sums[warp][d][lane].x, make_float4(acc[0][0][d], acc[1][0][d], acc[2][0][d], acc[3][0][d]));
  __syncthreads();

  auto total = [&](int d, int l, float (&v)[4]) {
    v[0] = v[1] = v[2] = v[3] = 0.0f;
    for (int p = 0; p < pieces; p++) {
      const float4 s = load16_float(&sums[p][d][l].x);
      v[0] += s.x, v[1] += s.y, v[2] += s.z, v[3] += s.w;
    }
  };
  for (int i = int(threadIdx.x); i < (args.gated ? 64 : 128); i += int(blockDim.x)) {
    const int d = i / 32, l = i % 32, column = 2 * (l % 4) + d % 2;
    const LanePlace place = lane_place(l);
    if (column >= job.columns) continue;
    const int entry = job_entry(job, column), out_tile = job.block * 2 + place.tile;
    const uint8_t* w = out_tile < job.target.tiles && job.weight ? job.weight + out_tile * args.tile_bytes : nullptr;
    float v[4];
    total(d, l, v);
    scale_rows<Weights>(w, d / 2, place.q, v);
    if (args.gated) {
      float up[4];
      total(d + 2, l, up);
      scale_rows<Weights>(w, 1, place.q, up);
      finish_gated(job.target, out_tile, place.q, entry, v, up);
    } else {
      finish_linear(args, job.target, out_tile, d / 2, place.q, entry, v);
    }
  }
}

}  // namespace freetoken::cuda
