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

// Fills first_block of the targets and launches. The rest of `args` is set. `groups`: blocks along y.
cudaError_t launch_matmul(WeightFormat format, MatmulVariant variant, MatmulArgs& args, int groups, cudaStream_t stream);

// What dense and expert matmuls set alike.
inline MatmulArgs matmul_args(WeightFormat format, Rows x, int k) {
  MatmulArgs args{};
  args.x = x.data;
  args.x_stride = x.stride;
  args.k = k;
  args.partition_k = matmul_partition_k(k);
  args.tile_bytes = int64_t(tile_bytes(format, k));
  args.scale = 1.0f;
  args.ranks = 1;
  return args;
}

}  // namespace freetoken::cuda
