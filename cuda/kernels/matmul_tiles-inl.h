// Many columns: a block of 4 warps has 4 pairs of tiles and Columns * 8 columns, a warp one pair and all of them. x is
// staged in shared memory, kStages steps of 32 k ahead; weights go from memory (mostly the second level cache) straight
// into mma fragments, one step ahead. The sums over pieces of K lie in shared memory, where a lane touches its own
// only: together with the piece's they would not fit the registers.
#pragma once
#include "cuda/kernels/matmul_decode-inl.h"

namespace freetoken::cuda {

constexpr int kTileWarps = 4, kTileThreads = 32 * kTileWarps, kStages = 3;

template <class Weights, int Columns>
__global__ void __launch_bounds__(kTileThreads, 2) matmul_tiles(const MatmulArgs args) {
  constexpr int kStepK = Weights::kStepK, kBlocks = kStepK / 16, kSteps = 32 / kStepK;
  constexpr int kWidth = Columns * 8, kCopies = kWidth * 8 / kTileThreads;
  // 16-byte chunk c of column m lies at c ^ 4 (m % 2): eight lanes read two columns' halves, from all banks.
  FT_SHARED(float4, stage, [kStages][kWidth][8]);
  FT_SHARED(float4, sums, [kTileWarps][Columns][4][32]);  // [warp][column tile][d][lane], the four are j
  FT_SHARED(const float*, inputs, [kWidth]);              // rows of x, null past the last column
  MatmulJob job;
  if (!find_job(args, kWidth, job)) return;

  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const LanePlace at = lane_place(lane);
  const int tile = (job.block * kTileWarps + warp) * 2 + at.tile;
  const float initial = job.weight ? 0.0f : __uint_as_float(0x7fc00000u);
  for (int c = 0; c < Columns; c++)
    for (int d = 0; d < 4; d++) store16(&sums[warp][c][d][lane].x, make_float4(initial, initial, initial, initial));

  if (job.weight) {
    const uint8_t* w = job.weight + min(tile, job.target.tiles - 1) * args.tile_bytes;
    for (int i = int(threadIdx.x); i < kWidth; i += kTileThreads)
      inputs[i] = i < job.columns ? job_input(args, job_entry(job, i)) : nullptr;
    __syncthreads();
    auto copy = [&](int s) {
#pragma unroll
      for (int i = 0; i < kCopies; i++) {
        const int place = int(threadIdx.x) + i * kTileThreads, column = place / 8, chunk = place % 8,
                  k0 = s * 32 + chunk * 4;
        float4* to = &stage[s % kStages][column][chunk ^ (column & 1) * 4];
        const float* x = inputs[column];
        if (k0 < args.k && k0 + 4 > args.k) store16(&to->x, load_x(x, k0, args.k));
        else cp_async16(to, x ? x + k0 : args.x, x && k0 < args.k);
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
    float acc[4][Columns][4] = {};
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
            const int column = c * 8 + lane / 4;
            const int chunk = ((i * kBlocks + h) * 4 + at.t) ^ (column & 1) * 4;
            to_b(load16_float(&stage[s % kStages][column][chunk].x), b[c][h]);
          }
        weights.multiply(b, acc);
      }
      if (++in_piece < piece && s + 1 < stages) continue;
      in_piece = 0;
#pragma unroll
      for (int c = 0; c < Columns; c++)
#pragma unroll
        for (int d = 0; d < 4; d++) {
          float* sum = &sums[warp][c][d][lane].x;
          const float4 v = load16_float(sum);
          store16(sum, make_float4(v.x + acc[0][c][d], v.y + acc[1][c][d], v.z + acc[2][c][d], v.w + acc[3][c][d]));
#pragma unroll
          for (int j = 0; j < 4; j++) acc[j][c][d] = 0.0f;
        }
    }
  }

  const uint8_t* w = tile < job.target.tiles && job.weight ? job.weight + tile * args.tile_bytes : nullptr;
  for (int c = 0; c < Columns; c++)
    for (int d = 0; d < 2; d++) {
      const int column = c * 8 + 2 * at.t + d;
      if (column >= job.columns) continue;
      const int entry = job_entry(job, column);
      const float4 low4 = load16_float(&sums[warp][c][d][lane].x), high4 = load16_float(&sums[warp][c][d + 2][lane].x);
      float low[4] = {low4.x, low4.y, low4.z, low4.w}, high[4] = {high4.x, high4.y, high4.z, high4.w};
      scale_rows<Weights>(w, 0, at.q, low);
      scale_rows<Weights>(w, 1, at.q, high);
      if (args.gated) {
        finish_gated(job.target, tile, at.q, entry, low, high);
      } else {
        finish_linear(args, job.target, tile, 0, at.q, entry, low);
        finish_linear(args, job.target, tile, 1, at.q, entry, high);
      }
    }
}

}  // namespace freetoken::cuda
