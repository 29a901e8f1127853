// The copy that bandwidths are compared with, and work over whole rows.
#include <string>

#include "cuda/kernels/norm.h"
#include "gpu_check/cases.h"
#include "gpu_check/device_memory.h"

namespace freetoken::gpu_check {

void copy_cases(const Take& take) {
  const DeviceMemory from(kColdBytes), to(kColdBytes);
  TimedCase timed;
  timed.name = "copy";
  timed.bytes = 2 * kColdBytes;
  timed.launch = [&](int, cudaStream_t stream) {
    return cudaMemcpyAsync(to.bytes(), from.bytes(), kColdBytes, cudaMemcpyDeviceToDevice, stream);
  };
  take(timed);
}

void row_cases(const Take& take) {
  constexpr int kCols = 2048;
  const DeviceMemory weight(size_t(kCols) * 4);
  for (const int rows : {1, 512, 8192}) {
    const int64_t bytes = int64_t(rows) * kCols * 4;
    const int copies = cold_copies(2 * bytes);
    const DeviceMemory x(size_t(bytes) * copies), out(size_t(bytes) * copies);
    TimedCase timed;
    timed.name = "rms norm, rows " + std::to_string(rows);
    timed.bytes = 2 * bytes;
    timed.copies = copies;
    timed.launch = [&](int copy, cudaStream_t stream) {
      cuda::NormArgs norm;
      norm.eps = 1e-6f;
      norm.weight = weight.as<float>();
      const size_t first = size_t(copy) * rows * kCols;
      return cuda::launch_norm(norm, x.as<float>() + first, kCols, rows, kCols, out.as<float>() + first, kCols, stream);
    };
    take(timed);
  }
}

}  // namespace freetoken::gpu_check
