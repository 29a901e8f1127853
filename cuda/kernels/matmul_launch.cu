#include "cuda/kernels/matmul_launch.h"

#include "cuda/kernels/matmul_tiles-inl.h"

namespace freetoken::cuda {
namespace {

template <WeightFormat F>
void launch_format(MatmulVariant variant, const MatmulArgs& args, dim3 grid, cudaStream_t stream) {
  switch (variant) {
    case MatmulVariant::kDecode:
      FT_LAUNCH((matmul_decode<F>), grid, dim3(unsigned(32 * matmul_partitions(args.k))), 0, stream, args);
      return;
    case MatmulVariant::kNarrow:
      FT_LAUNCH((matmul_tiles<F, 2>), grid, dim3(kTileThreads), 0, stream, args);
      return;
    case MatmulVariant::kWide:
      FT_LAUNCH((matmul_tiles<F, 4>), grid, dim3(kTileThreads), 0, stream, args);
      return;
  }
}

}  // namespace

cudaError_t launch_matmul(WeightFormat format, MatmulVariant variant, MatmulArgs& args, int groups, cudaStream_t stream) {
  const int pairs = variant_pairs(variant);
  int blocks = 0;
  for (int i = 0; i < args.targets; i++) {
    MatmulTarget& t = args.target[i];
    t.tiles = args.gated ? ceil_div(t.n, kTileRows / 2) : tile_count(t.n);
    t.first_block = blocks;
    blocks += ceil_div(t.tiles, 2 * pairs);
  }
  if (blocks == 0 || groups == 0) return cudaSuccess;
  const dim3 grid{unsigned(blocks), unsigned(groups), 1u};
  switch (format) {
    case WeightFormat::kBF16: launch_format<WeightFormat::kBF16>(variant, args, grid, stream); break;
    case WeightFormat::kQ4_0: launch_format<WeightFormat::kQ4_0>(variant, args, grid, stream); break;
    case WeightFormat::kQ4_1: launch_format<WeightFormat::kQ4_1>(variant, args, grid, stream); break;
    case WeightFormat::kQ8_0: launch_format<WeightFormat::kQ8_0>(variant, args, grid, stream); break;
    case WeightFormat::kQ6_K: launch_format<WeightFormat::kQ6_K>(variant, args, grid, stream); break;
    default: return cudaErrorNotSupported;
  }
  return cudaGetLastError();
}

}  // namespace freetoken::cuda
