#include "cuda/kernels/matmul_nvfp4.h"

#include "cuda/kernels/matmul_decode-inl.h"
#include "cuda/kernels/matmul_launch.h"
#include "cuda/kernels/t32_nvfp4.h"
#include "quant/nvfp4.h"

namespace freetoken::cuda {

static_assert(Nvfp4Fragment::kUnitBytes == nvfp4::kUnitBytes && Nvfp4Fragment::kHeadBytes == nvfp4::kHeadBytes);

cudaError_t launch_linear_nvfp4(Rows x, int rows, int k, const LinearTarget& target, cudaStream_t stream) {
  if (rows == 0 || target.n == 0) return cudaSuccess;
  MatmulArgs args = dense_args(x, rows, k, int64_t(nvfp4::tile_bytes(k)));
  args.targets = 1;
  args.target[0] = dense_target(target);
  const dim3 grid =
      place_targets(args, MatmulVariant::kDecode, ceil_div(rows, variant_columns(MatmulVariant::kDecode)));
  FT_LAUNCH((matmul_decode<Nvfp4Fragment>), grid, dim3(unsigned(32 * matmul_partitions(k))), 0, stream, args);
  return cudaGetLastError();
}

}  // namespace freetoken::cuda
