// A matmul on NVFP4 weights for few rows: the proof of the layout in quant/nvfp4.h. No model is run with it yet.
#pragma once
#include "cuda/kernels/matmul.h"

namespace freetoken::cuda {

// out[r] = x[r] W^T + bias for r < rows, W in nvfp4::tile_bytes(k) a tile. `target.format` is not looked at.
cudaError_t launch_linear_nvfp4(Rows x, int rows, int k, const LinearTarget& target, cudaStream_t stream);

}  // namespace freetoken::cuda
