// Between the launchers and the kernels: one entry per variant. Which variant runs changes no bit.
#pragma once
#include "cuda/kernels/matmul_args.h"

namespace freetoken::cuda {

enum class MatmulVariant { kDecode, kNarrow, kWide };

// Pairs of tiles and columns (rows of x) of a block.
constexpr int variant_pairs(MatmulVariant v) { return v == MatmulVariant::kDecode ? 1 : 4; }
constexpr int variant_columns(MatmulVariant v) {
  return v == MatmulVariant::kDecode ? 8 : v == MatmulVariant::kNarrow ? 16 : 32;
}

// Formats whose x is rounded to bf16.
constexpr bool mma_format(WeightFormat f) { return f != WeightFormat::kF32 && f != WeightFormat::kF16; }

// A dense matmul of `entries` rows, without its targets.
inline MatmulArgs dense_args(Rows x, int entries, int k, int64_t tile_bytes) {
  MatmulArgs args{};
  args.x = x.data;
  args.x_stride = x.stride;
  args.k = k;
  args.partition_k = matmul_partition_k(k);
  args.tile_bytes = tile_bytes;
  args.scale = 1.0f;
  args.entries = entries;
  args.ranks = 1;
  return args;
}

inline MatmulTarget dense_target(const LinearTarget& t) {
  MatmulTarget target{};
  target.weight = static_cast<const uint8_t*>(t.weight);
  target.bias = t.bias;
  target.out = t.out;
  target.out_stride = t.out_stride;
  target.n = t.n;
  return target;
}

// Gives every target its blocks; `groups` of columns along y. grid.x or grid.y 0: nothing to do.
inline dim3 place_targets(MatmulArgs& args, MatmulVariant variant, int groups) {
  int blocks = 0;
  for (int i = 0; i < args.targets; i++) {
    MatmulTarget& t = args.target[i];
    t.tiles = args.gated ? ceil_div(t.n, kTileRows / 2) : tile_count(t.n);
    t.first_block = blocks;
    blocks += ceil_div(t.tiles, 2 * variant_pairs(variant));
  }
  return dim3(unsigned(blocks), unsigned(groups));
}

cudaError_t launch_matmul(WeightFormat format, MatmulVariant variant, MatmulArgs& args, int groups,
                          cudaStream_t stream);

}  // namespace freetoken::cuda
