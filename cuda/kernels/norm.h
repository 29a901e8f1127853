// Norms over whole rows.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace freetoken::cuda {

struct NormArgs {
  bool layer = false;             // layer norm, else rms norm
  bool plus_one = false;          // rms: the weight is stored as w - 1
  float eps = 0;
  const float* weight = nullptr;  // [cols] or null = 1
  const float* bias = nullptr;    // layer: [cols] or null
};

// rms:   out = x / sqrt(mean(x^2) + eps) * w
// layer: out = (x - mean) / sqrt(mean((x - mean)^2) + eps) * w + b
// One block a row; sums run over a fixed tree that depends on cols alone. out may be x. Rows, weight and bias start at multiples of 16 bytes
// (strides are multiples of 4 floats), else cudaErrorInvalidValue.
cudaError_t launch_norm(const NormArgs& norm, const float* x, int64_t x_stride, int rows, int cols, float* out,
                        int64_t out_stride, cudaStream_t stream);

// x += scale * y, then out = norm(x): the bits of launch_add() followed by launch_norm(). out is neither x nor y.
cudaError_t launch_add_norm(const NormArgs& norm, float* x, int64_t x_stride, const float* y, int64_t y_stride, float scale,
                            int rows, int cols, float* out, int64_t out_stride, cudaStream_t stream);

}  // namespace freetoken::cuda
