// A stream that waits for a word of pinned host memory.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace freetoken::cuda {

// What is waited for. Lives as long as the stream and every graph that waits.
struct FlagWait {
  uint32_t* flag = nullptr;
  uint32_t value = 0;
};

class StreamValues {
 public:
  // Finds the driver's stream memory operations.
  StreamValues();
  // False: the driver has none. A thread of the runtime then waits in a host function.
  bool native() const { return wait_ != nullptr; }
  // Work after it in the stream starts when *flag == value. May be captured.
  cudaError_t wait(cudaStream_t stream, const FlagWait& flag) const;

 private:
  // CUstream, CUdeviceptr, cuuint32_t, flags -> CUresult
  using Wait = int (*)(cudaStream_t, unsigned long long, unsigned, unsigned);
  Wait wait_ = nullptr;
};

}  // namespace freetoken::cuda
