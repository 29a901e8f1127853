// Many columns: a block of 4 warps has RowWarps pairs of tiles and ColumnWarps * Columns * 8 columns, a warp one pair and
// Columns * 8 of them. x is staged in shared memory, kStages steps of 32 k ahead; weights go from memory (mostly the second
// level cache) straight into mma fragments, one step ahead.
#pragma once
#include "cuda/kernels/matmul_decode-inl.h"

namespace freetoken::cuda {

constexpr int kTileThreads = 128, kStages = 4;

template <WeightFormat F, int RowWarps, int ColumnWarps, int Columns>
__global__ void __launch_bounds__(kTileThreads) matmul_tiles(const MatmulArgs args) {
  static_assert(RowWarps * ColumnWarps == 4);
  using Weights = Fragment<F>;
  constexpr int kStepK = Weights::kStepK, kBlocks = kStepK / 16, kSteps = 32 / kStepK;
  constexpr int kWidth = ColumnWarps * Columns * 8, kCopies = kWidth * 8 / kTileThreads;
  // 16-byte chunk c of column m lies at c ^ 4 (m % 2): eight lanes read two columns' halves, from all banks.
  FT_SHARED(float4, stage, [kStages][kWidth][8]);
  MatmulJob job;
  if (!find_job(args, kWidth, job)) return;

  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const LanePlace at = lane_place(lane);
  const int tile = (job.block * RowWarps + warp % RowWarps) * 2 + at.tile, column0 = warp / RowWarps * Columns * 8;
  float acc[4][Columns][4], sum[4][Columns][4];
#pragma unroll
  for (int j = 0; j < 4; j++)
#pragma unroll
    for (int c = 0; c < Columns; c++)
#pragma unroll
      for (int d = 0; d < 4; d++) acc[j][c][d] = 0.0f, sum[j][c][d] = job.weight ? 0.0f : __uint_as_float(0x7fc00000u);

  if (job.weight) {
    const uint8_t* w = job.weight + min(tile, job.target.tiles - 1) * args.tile_bytes;
    const float* x[kCopies];
#pragma unroll
    for (int i = 0; i < kCopies; i++) {
      const int column = (int(threadIdx.x) + i * kTileThreads) / 8;
      x[i] = column < job.columns ? job_input(args, job_entry(job, column)) : nullptr;
    }
    auto copy = [&](int s) {
#pragma unroll
      for (int i = 0; i < kCopies; i++) {
        const int place = int(threadIdx.x) + i * kTileThreads, column = place / 8, chunk = place % 8, k0 = s * 32 + chunk * 4;
        float4* to = &stage[s % kStages][column][chunk ^ (column & 1) * 4];
        if (k0 < args.k && k0 + 4 > args.k) *to = load_x(x[i], k0, args.k);
        else cp_async16(to, x[i] ? x[i] + k0 : args.x, x[i] && k0 < args.k);
      }
    };
    const int stages = (args.k + 31) / 32, steps = (args.k + kStepK - 1) / kStepK, piece = args.partition_k / 32;
    auto load = [&](Weights& weights, int step) {
      const int k0 = step * kStepK;
      if (k0 + kStepK <= args.k) weights.load(w, at, k0);
      else weights.load_tail(w, at, k0, args.k);
    };
    for (int s = 0; s < kStages - 1; s++) {
      if (s < stages) copy(s);
      cp_async_commit();
    }
    Weights next;
    load(next, 0);
    for (int s = 0, in_piece = 0; s < stages; s++) {
      cp_async_wait<kStages - 2>();
      __syncthreads();
      if (s + kStages - 1 < stages) copy(s + kStages - 1);
      cp_async_commit();
#pragma unroll
      for (int i = 0; i < kSteps; i++) {
        const int step = s * kSteps + i;
        if (step >= steps) break;
        const Weights weights = next;
        if (step + 1 < steps) load(next, step + 1);
        uint32_t b[Columns][kBlocks][2];
#pragma unroll
        for (int c = 0; c < Columns; c++)
#pragma unroll
          for (int h = 0; h < kBlocks; h++) {
            const int column = column0 + c * 8 + lane / 4;
            to_b(stage[s % kStages][column][((i * kBlocks + h) * 4 + at.t) ^ (column & 1) * 4], b[c][h]);
          }
        weights.multiply(b, acc);
      }
      if (++in_piece == piece || s + 1 == stages) {
        in_piece = 0;
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
          for (int c = 0; c < Columns; c++)
#pragma unroll
            for (int d = 0; d < 4; d++) sum[j][c][d] += acc[j][c][d], acc[j][c][d] = 0.0f;
      }
    }
  }

#pragma unroll
  for (int c = 0; c < Columns; c++)
#pragma unroll
    for (int d = 0; d < 2; d++) {
      const int column = column0 + c * 8 + 2 * at.t + d;
      if (column >= job.columns) continue;
      const int entry = job_entry(job, column);
      float low[4] = {sum[0][c][d], sum[1][c][d], sum[2][c][d], sum[3][c][d]};
      float high[4] = {sum[0][c][d + 2], sum[1][c][d + 2], sum[2][c][d + 2], sum[3][c][d + 2]};
      if (args.gated) {
        finish_gated(job.target, tile, at.q, entry, low, high);
      } else {
        finish_linear(args, job.target, tile, 0, at.q, entry, low);
        finish_linear(args, job.target, tile, 1, at.q, entry, high);
      }
    }
}

}  // namespace freetoken::cuda
