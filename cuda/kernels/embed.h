// Rows of a packed embedding table.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/step_view.h"
#include "quant/format.h"

namespace freetoken::cuda {

// out[r][0..k) = row(token of r) * scale, fp32, the weights decoded as decode_row() does (quant/t32.h) and then rounded once
// more by the scale. The token is step.row_token[r], or step.sampled[~row_token[r]] where that is negative; NaN where
// nothing could be drawn.
// table: T32 of any format, k columns. out: rows out_stride floats apart.
cudaError_t launch_embed(const StepView& step, int rows, WeightFormat format, const uint8_t* table, int k, float scale,
                         float* out, int64_t out_stride, cudaStream_t stream);

}  // namespace freetoken::cuda
