#include "cuda/kernels/matmul_launch.h"

#include "cuda/kernels/matmul_tiles-inl.h"

namespace freetoken::cuda {
namespace {

template <WeightFormat F>
void launch_format(MatmulVariant variant, const MatmulArgs& args, dim3 grid, cudaStream_t stream) {
  switch (variant) {
    case MatmulVariant::kDecode:
      FT_LAUNCH((matmul_decode<Fragment<F>>), grid, dim3(unsigned(32 * matmul_partitions(args.k))), 0, stream, args);
      return;
    case MatmulVariant::kNarrow:
      FT_LAUNCH((matmul_tiles<Fragment<F>, 2>), grid, dim3(kTileThreads), 0, stream, args);
      return;
    case MatmulVariant::kWide:
      FT_LAUNCH((matmul_tiles<Fragment<F>, 4>), grid, dim3(kTileThreads), 0, stream, args);
      return;
  }
}

}  // namespace

cudaError_t launch_matmul(WeightFormat format, MatmulVariant variant, MatmulArgs& args, int groups,
                          cudaStream_t stream) {
  const dim3 grid = place_targets(args, variant, groups);
  if (grid.x == 0 || grid.y == 0) return cudaSuccess;
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
