// A CUDA error as a Status that names the call.
#pragma once
#include <cuda_runtime.h>

#include <string>

#include "core/status.h"

namespace freetoken::cuda {

inline Status cuda_status(cudaError_t error, const std::string& call) {
  if (error == cudaSuccess) return {};
  const std::string what = call + " failed on the GPU: " + cudaGetErrorString(error) + " (CUDA error " +
                           std::to_string(int(error)) + ", " + cudaGetErrorName(error) + ")";
  if (error == cudaErrorMemoryAllocation) return ResourceExhausted(what);
  return error == cudaErrorNotSupported ? Unsupported(what) : Internal(what);
}

}  // namespace freetoken::cuda

#define FT_CUDA_RETURN_IF_ERROR(call, name) FT_RETURN_IF_ERROR(::freetoken::cuda::cuda_status((call), (name)))
