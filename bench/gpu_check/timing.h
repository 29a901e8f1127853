// Times launches on a GPU: many of them in one graph, so that the host is not in the figure, over operands that together do
// not fit the caches.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <string>

namespace freetoken::gpu_check {

constexpr int64_t kColdBytes = int64_t(512) << 20;  // more than any L2

struct TimedCase {
  std::string name;
  int64_t bytes = 0;       // that one launch must move: read and written once
  double flops = 0;        // where that is the limit, else 0
  int copies = 1;          // of the operands; launch(i) works on copy i
  std::function<cudaError_t(int copy, cudaStream_t)> launch;
};

// How many copies of operands of that size it takes to be cold.
int cold_copies(int64_t bytes);

// Microseconds of one launch: the median of 9 replays.
double time_us(const TimedCase& timed);

}  // namespace freetoken::gpu_check
