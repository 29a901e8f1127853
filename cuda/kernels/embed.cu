#include "cuda/kernels/embed.h"

#include "cuda/kernels/embed_decode-inl.h"
#include "cuda/kernels/rows_math-inl.h"

namespace freetoken::cuda {
namespace {

constexpr int kThreads = 256;

template <WeightFormat F>
__global__ void __launch_bounds__(kThreads)
    embed_rows(StepView step, const uint8_t* table, int64_t tile_stride, int k, float scale, float* out, int64_t out_stride) {
  const int i = int(blockIdx.x) * kThreads + int(threadIdx.x), r = int(blockIdx.y);
  if (i >= k) return;
  const int32_t source = step.row_token[r], token = source >= 0 ? source : step.sampled[~source];
  float* to = out + r * out_stride + i;
  if (token < 0) {
    *to = quiet_nan();
    return;
  }
  *to = __fmul_rn(weight_at<F>(table + int64_t(token / kTileRows) * tile_stride, token % kTileRows, i), scale);
}

template <WeightFormat F>
cudaError_t embed(const StepView& step, int rows, const uint8_t* table, int k, float scale, float* out, int64_t out_stride,
                  cudaStream_t stream) {
  const dim3 grid(unsigned((k + kThreads - 1) / kThreads), unsigned(rows));
  FT_LAUNCH((embed_rows<F>), grid, dim3(kThreads), 0, stream, step, table, int64_t(tile_bytes(F, k)), k, scale, out,
            out_stride);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_embed(const StepView& step, int rows, WeightFormat format, const uint8_t* table, int k, float scale,
                         float* out, int64_t out_stride, cudaStream_t stream) {
  if (rows == 0 || k == 0) return cudaSuccess;
  const auto run = [&](auto launch) { return launch(step, rows, table, k, scale, out, out_stride, stream); };
  switch (format) {
    case WeightFormat::kF32: return run(embed<WeightFormat::kF32>);
    case WeightFormat::kF16: return run(embed<WeightFormat::kF16>);
    case WeightFormat::kBF16: return run(embed<WeightFormat::kBF16>);
    case WeightFormat::kQ8_0: return run(embed<WeightFormat::kQ8_0>);
    case WeightFormat::kQ4_0: return run(embed<WeightFormat::kQ4_0>);
    case WeightFormat::kQ4_1: return run(embed<WeightFormat::kQ4_1>);
    case WeightFormat::kQ6_K: return run(embed<WeightFormat::kQ6_K>);
  }
  return cudaErrorNotSupported;
}

}  // namespace freetoken::cuda
