// Entries sorted by expert, and cut into tiles: histogram, scan and scatter in one block. The order of an expert's
// entries is not fixed; nothing depends on it, since every entry's output is stored in its own place.
#pragma once
#include "cuda/kernels/device.h"
#include "cuda/kernels/moe_matmul.h"

namespace freetoken::cuda {

constexpr int kGroupThreads = 1024;

FT_DEV int warp_inclusive_sum(int v, int lane) {
  for (int d = 1; d < 32; d *= 2) {
    const int below = __shfl_up_sync(~0u, v, unsigned(d));
    if (lane >= d) v += below;
  }
  return v;
}

// Sum over the threads before this one. `warps`: 32 ints of shared memory; two barriers.
FT_DEV int block_exclusive_sum(int v, int* warps) {
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int inclusive = warp_inclusive_sum(v, lane);
  if (lane == 31) warps[warp] = inclusive;
  __syncthreads();
  const int below = warp_inclusive_sum(warps[lane], lane);  // every warp scans all 32
  const int before = __shfl_sync(~0u, below, warp ? warp - 1 : 0);
  __syncthreads();
  return inclusive - v + (warp ? before : 0);
}

__global__ void __launch_bounds__(kGroupThreads, 1)
    group_kernel(const int32_t* choice, int entries, int begin, int end, const ExpertGroups groups) {
  static_assert(kGroupThreads == kMaxGroupedExperts, "a thread has one expert");
  FT_SHARED(int, count, [kMaxGroupedExperts]);
  FT_SHARED(int, place, [kMaxGroupedExperts]);  // of the expert's next entry
  FT_SHARED(int, warps, [32]);
  const int self = int(threadIdx.x);
  count[self] = 0;
  __syncthreads();
  for (int i = self; i < entries; i += kGroupThreads) {
    const int e = choice[i];
    if (e >= begin && e < end) atomicAdd(&count[e], 1);
  }
  __syncthreads();
  const int mine = count[self], width = groups.tile_entries, tiles = (mine + width - 1) / width;
  const int first = block_exclusive_sum(mine, warps), first_tile = block_exclusive_sum(tiles, warps);
  place[self] = first;
  for (int i = 0; i < tiles; i++) {
    groups.tile_expert[first_tile + i] = self;
    groups.tile_begin[first_tile + i] = first + i * width;
    groups.tile_size[first_tile + i] = min(width, mine - i * width);
  }
  if (self == kGroupThreads - 1) *groups.tile_count = first_tile + tiles;
  __syncthreads();
  for (int i = self; i < entries; i += kGroupThreads) {
    const int e = choice[i];
    if (e >= begin && e < end) groups.order[atomicAdd(&place[e], 1)] = i;
  }
}

}  // namespace freetoken::cuda
