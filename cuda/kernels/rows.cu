#include "cuda/kernels/rows.h"

#include "cuda/kernels/rows_math-inl.h"

namespace freetoken::cuda {
namespace {

constexpr int kThreads = 256;

// Element of a thread: column blockIdx.x * kThreads + threadIdx.x of row blockIdx.y.
FT_DEV int column() { return int(blockIdx.x) * kThreads + int(threadIdx.x); }

dim3 grid_of(int rows, int cols) { return dim3(unsigned((cols + kThreads - 1) / kThreads), unsigned(rows)); }

__global__ void __launch_bounds__(kThreads)
    add_rows(float* x, int64_t x_stride, const float* y, int64_t y_stride, float scale, int cols) {
  const int i = column();
  if (i >= cols) return;
  float* to = x + blockIdx.y * x_stride + i;
  *to = fmaf(y[blockIdx.y * y_stride + i], scale, *to);
}

__global__ void __launch_bounds__(kThreads) add_bias_rows(float* x, int64_t x_stride, const float* bias, int cols) {
  const int i = column();
  if (i < cols) x[blockIdx.y * x_stride + i] += bias[i];
}

__global__ void __launch_bounds__(kThreads)
    gather_rows(const float* x, int64_t x_stride, const int32_t* row_index, int cols, float* out, int64_t out_stride) {
  const int i = column();
  if (i < cols) out[blockIdx.y * out_stride + i] = x[row_index[blockIdx.y] * x_stride + i];
}

__global__ void __launch_bounds__(kThreads)
    scale_softcap_rows(float* x, int64_t x_stride, float scale, float softcap, int cols) {
  const int i = column();
  if (i >= cols) return;
  float* to = x + blockIdx.y * x_stride + i;
  const float v = __fmul_rn(*to, scale);
  *to = softcap > 0.0f ? soft_cap(v, softcap) : v;
}

}  // namespace

cudaError_t launch_add(float* x, int64_t x_stride, const float* y, int64_t y_stride, float scale, int rows, int cols,
                       cudaStream_t stream) {
  if (rows == 0 || cols == 0) return cudaSuccess;
  FT_LAUNCH((add_rows), grid_of(rows, cols), dim3(kThreads), 0, stream, x, x_stride, y, y_stride, scale, cols);
  return cudaGetLastError();
}

cudaError_t launch_add_bias(float* x, int64_t x_stride, const float* bias, int rows, int cols, cudaStream_t stream) {
  if (rows == 0 || cols == 0) return cudaSuccess;
  FT_LAUNCH((add_bias_rows), grid_of(rows, cols), dim3(kThreads), 0, stream, x, x_stride, bias, cols);
  return cudaGetLastError();
}

cudaError_t launch_gather(const float* x, int64_t x_stride, const int32_t* row_index, int count, int cols, float* out,
                          int64_t out_stride, cudaStream_t stream) {
  if (count == 0 || cols == 0) return cudaSuccess;
  FT_LAUNCH((gather_rows), grid_of(count, cols), dim3(kThreads), 0, stream, x, x_stride, row_index, cols, out, out_stride);
  return cudaGetLastError();
}

cudaError_t launch_scale_softcap(float* x, int64_t x_stride, float scale, float softcap, int rows, int cols,
                                 cudaStream_t stream) {
  if (rows == 0 || cols == 0) return cudaSuccess;
  FT_LAUNCH((scale_softcap_rows), grid_of(rows, cols), dim3(kThreads), 0, stream, x, x_stride, scale, softcap, cols);
  return cudaGetLastError();
}

}  // namespace freetoken::cuda
