#include "cuda/kernels/matmul.h"

#include "cuda/kernels/matmul_f32-inl.h"
#include "cuda/kernels/matmul_launch.h"

namespace freetoken::cuda {
namespace {

// Columns of a block against blocks in flight: few rows read the weights once per 8, from the cache after the first.
MatmulVariant dense_variant(int rows) {
  return rows <= 32 ? MatmulVariant::kDecode : rows <= 128 ? MatmulVariant::kNarrow : MatmulVariant::kWide;
}

cudaError_t launch_dense(WeightFormat format, MatmulArgs& args, cudaStream_t stream) {
  const MatmulVariant variant = dense_variant(args.entries);
  return launch_matmul(format, variant, args, ceil_div(args.entries, variant_columns(variant)), stream);
}

template <WeightFormat F>
void launch_f32(const F32Args& args, cudaStream_t stream) {
  const unsigned tiles = unsigned(tile_count(args.n)), threads = unsigned(32 * matmul_partitions(args.k));
  if (args.rows == 1) FT_LAUNCH((matmul_f32<F, 1>), dim3(tiles), dim3(threads), 0, stream, args);
  else FT_LAUNCH((matmul_f32<F, 4>), dim3(tiles, unsigned(ceil_div(args.rows, 4))), dim3(threads), 0, stream, args);
}

cudaError_t run_f32(Rows x, int rows, int k, const LinearTarget& t, float scale, float softcap, cudaStream_t stream) {
  if (rows == 0 || t.n == 0) return cudaSuccess;
  const F32Args args{x.data, x.stride, rows, k, t.n, matmul_partition_k(k), static_cast<const uint8_t*>(t.weight),
                     int64_t(tile_bytes(t.format, k)), t.bias, t.out, t.out_stride, scale, softcap};
  switch (t.format) {
    case WeightFormat::kF32: launch_f32<WeightFormat::kF32>(args, stream); break;
    case WeightFormat::kF16: launch_f32<WeightFormat::kF16>(args, stream); break;
    case WeightFormat::kBF16: launch_f32<WeightFormat::kBF16>(args, stream); break;
    default: return cudaErrorNotSupported;
  }
  return cudaGetLastError();
}

__global__ void __launch_bounds__(256) gated_rows_kernel(const float* gate, int64_t gate_stride, const float* up,
                                                         int64_t up_stride, int n, float* out, int64_t out_stride) {
  const int i = int(blockIdx.y) * 256 + int(threadIdx.x);
  if (i >= n) return;
  const int64_t row = blockIdx.x;
  out[row * out_stride + i] = silu(gate[row * gate_stride + i]) * up[row * up_stride + i];
}

}  // namespace

bool linear_supports(WeightFormat) { return true; }
bool gated_supports(WeightFormat format) { return mma_format(format); }
bool linear_f32_supports(WeightFormat format) { return !mma_format(format) || format == WeightFormat::kBF16; }

cudaError_t launch_linear(Rows x, int rows, int k, const LinearTarget* targets, int count, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  bool done[kMaxLinearTargets] = {};
  if (count > kMaxLinearTargets) return cudaErrorInvalidValue;
  for (int i = 0; i < count; i++) {
    if (done[i]) continue;
    const WeightFormat format = targets[i].format;
    cudaError_t error;
    if (mma_format(format)) {
      MatmulArgs args = dense_args(x, rows, k, int64_t(tile_bytes(format, k)));
      for (int j = i; j < count; j++) {
        if (targets[j].format != format) continue;
        done[j] = true;
        args.target[args.targets++] = dense_target(targets[j]);
      }
      error = launch_dense(format, args, stream);
    } else {
      error = run_f32(x, rows, k, targets[i], 1.0f, 0.0f, stream);
    }
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t launch_linear_f32(Rows x, int rows, int k, const LinearTarget& target, cudaStream_t stream) {
  return run_f32(x, rows, k, target, 1.0f, 0.0f, stream);
}

cudaError_t launch_logits(Rows x, int rows, int k, const LinearTarget& head, float scale, float softcap,
                          cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  if (!mma_format(head.format)) return run_f32(x, rows, k, head, scale, softcap, stream);
  MatmulArgs args = dense_args(x, rows, k, int64_t(tile_bytes(head.format, k)));
  args.scale = scale;
  args.softcap = softcap;
  args.targets = 1;
  args.target[0] = dense_target(head);
  return launch_dense(head.format, args, stream);
}

cudaError_t launch_gated(Rows x, int rows, int k, const GatedTarget& target, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  if (!mma_format(target.format)) return cudaErrorNotSupported;
  MatmulArgs args = dense_args(x, rows, k, int64_t(tile_bytes(target.format, k)));
  args.gated = true;
  args.targets = 1;
  MatmulTarget& t = args.target[0];
  t.weight = static_cast<const uint8_t*>(target.weight);
  t.bias = target.gate_bias;
  t.bias2 = target.up_bias;
  t.out = target.out;
  t.out_stride = target.out_stride;
  t.n = target.inner;
  return launch_dense(target.format, args, stream);
}

cudaError_t launch_gated_rows(Rows gate, Rows up, int rows, int n, float* out, int64_t out_stride,
                              cudaStream_t stream) {
  if (rows == 0 || n == 0) return cudaSuccess;
  FT_LAUNCH((gated_rows_kernel), dim3(unsigned(rows), unsigned(ceil_div(n, 256))), dim3(256), 0, stream, gate.data,
            gate.stride, up.data, up.stride, n, out, out_stride);
  return cudaGetLastError();
}

}  // namespace freetoken::cuda
