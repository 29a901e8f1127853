#include "cuda/kernels/norm.h"

#include "cuda/kernels/rows_math-inl.h"

namespace freetoken::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// Four columns of a row; what lies behind its end is `fill`.
struct Quad {
  float v[4];
};
FT_DEV Quad load_quad(const float* row, int quad, int cols, float fill) {
  const int first = 4 * quad;
  if (first + 4 <= cols) {
    const float4 f = load16_float(row + first);
    return {{f.x, f.y, f.z, f.w}};
  }
  Quad q;
#pragma unroll
  for (int i = 0; i < 4; i++) q.v[i] = first + i < cols ? row[first + i] : fill;
  return q;
}
FT_DEV void store_quad(float* row, int quad, int cols, const Quad& q) {
  const int first = 4 * quad;
  if (first + 4 <= cols) {
    store16(row + first, float4{q.v[0], q.v[1], q.v[2], q.v[3]});
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; i++)
    if (first + i < cols) row[first + i] = q.v[i];
}

// A thread owns quads threadIdx.x + kThreads i of its row: what it stores in one pass it alone reads in the next.
template <bool Add, bool Layer>
__global__ void __launch_bounds__(kThreads) norm_rows(NormArgs norm, float* x, int64_t x_stride, const float* y,
                                                      int64_t y_stride, float y_scale, int cols, float* out,
                                                      int64_t out_stride) {
  FT_SHARED(float, warp_sums, [kWarps]);
  const int quads = (cols + 3) / 4;
  float* row = x + blockIdx.x * x_stride;
  float* to = out + blockIdx.x * out_stride;
  float total = 0.0f;  // of x, or of its squares
  for (int q = int(threadIdx.x); q < quads; q += kThreads) {
    Quad v = load_quad(row, q, cols, 0.0f);
    if constexpr (Add) {
      const Quad added = load_quad(y + blockIdx.x * y_stride, q, cols, 0.0f);
      for (int i = 0; i < 4; i++) v.v[i] = fmaf(added.v[i], y_scale, v.v[i]);
      store_quad(row, q, cols, v);
    }
    for (int i = 0; i < 4; i++) total = Layer ? total + v.v[i] : fmaf(v.v[i], v.v[i], total);
  }
  total = sum_block<kWarps>(total, warp_sums);
  float mean = 0.0f, mean_square = total / float(cols);
  if constexpr (Layer) {
    mean = mean_square;
    float squares = 0.0f;
    for (int q = int(threadIdx.x); q < quads; q += kThreads) {
      const Quad v = load_quad(row, q, cols, mean);
      for (int i = 0; i < 4; i++) squares = fmaf(v.v[i] - mean, v.v[i] - mean, squares);
    }
    mean_square = sum_block<kWarps>(squares, warp_sums) / float(cols);
  }
  const float inverse = 1.0f / sqrtf(mean_square + norm.eps);
  const float offset = norm.plus_one ? 1.0f : 0.0f;
  for (int q = int(threadIdx.x); q < quads; q += kThreads) {
    Quad v = load_quad(row, q, cols, 0.0f);
    for (int i = 0; i < 4; i++) v.v[i] = __fmul_rn(v.v[i] - mean, inverse);
    if (norm.weight) {
      const Quad w = load_quad(norm.weight, q, cols, 0.0f);
      for (int i = 0; i < 4; i++) v.v[i] = __fmul_rn(v.v[i], w.v[i] + offset);
    }
    if (Layer && norm.bias) {
      const Quad b = load_quad(norm.bias, q, cols, 0.0f);
      for (int i = 0; i < 4; i++) v.v[i] += b.v[i];
    }
    store_quad(to, q, cols, v);
  }
}

bool aligned(const float* p, int64_t stride) { return reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride % 4 == 0; }

template <bool Add>
cudaError_t launch(const NormArgs& norm, float* x, int64_t x_stride, const float* y, int64_t y_stride, float scale,
                   int rows, int cols, float* out, int64_t out_stride, cudaStream_t stream) {
  if (rows == 0 || cols == 0) return cudaSuccess;
  if (!aligned(x, x_stride) || !aligned(out, out_stride) || !aligned(y, y_stride) || !aligned(norm.weight, 0) ||
      !aligned(norm.bias, 0))
    return cudaErrorInvalidValue;
  const dim3 grid{unsigned(rows)}, block{unsigned(kThreads)};
  if (norm.layer)
    FT_LAUNCH((norm_rows<Add, true>), grid, block, 0, stream, norm, x, x_stride, y, y_stride, scale, cols, out, out_stride);
  else
    FT_LAUNCH((norm_rows<Add, false>), grid, block, 0, stream, norm, x, x_stride, y, y_stride, scale, cols, out, out_stride);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_norm(const NormArgs& norm, const float* x, int64_t x_stride, int rows, int cols, float* out,
                        int64_t out_stride, cudaStream_t stream) {
  return launch<false>(norm, const_cast<float*>(x), x_stride, nullptr, 0, 0.0f, rows, cols, out, out_stride, stream);
}

cudaError_t launch_add_norm(const NormArgs& norm, float* x, int64_t x_stride, const float* y, int64_t y_stride, float scale,
                            int rows, int cols, float* out, int64_t out_stride, cudaStream_t stream) {
  return launch<true>(norm, x, x_stride, y, y_stride, scale, rows, cols, out, out_stride, stream);
}

}  // namespace freetoken::cuda
