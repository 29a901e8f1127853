// Element-wise work on fp32 rows. Strides are in floats.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace freetoken::cuda {

// x[r] = fma(y[r], scale, x[r])
cudaError_t launch_add(float* x, int64_t x_stride, const float* y, int64_t y_stride, float scale, int rows, int cols,
                       cudaStream_t stream);

// x[r] += bias; bias [cols]
cudaError_t launch_add_bias(float* x, int64_t x_stride, const float* bias, int rows, int cols, cudaStream_t stream);

// out[i] = x[row_index[i]] for i < count; row_index in device memory. out shares no byte with x.
cudaError_t launch_gather(const float* x, int64_t x_stride, const int32_t* row_index, int count, int cols, float* out,
                          int64_t out_stride, cudaStream_t stream);

// x *= scale, then x = softcap * tanh(x / softcap) where softcap > 0
cudaError_t launch_scale_softcap(float* x, int64_t x_stride, float scale, float softcap, int rows, int cols,
                                 cudaStream_t stream);

}  // namespace freetoken::cuda
