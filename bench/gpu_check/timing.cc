#include "gpu_check/timing.h"

#include <algorithm>
#include <array>

#include "gpu_check/device_memory.h"

namespace freetoken::gpu_check {

int cold_copies(int64_t bytes) { return int(std::clamp<int64_t>(kColdBytes / std::max<int64_t>(bytes, 1), 1, 64)); }

double time_us(const TimedCase& timed) {
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "cudaStreamCreate");
  for (int copy = 0; copy < timed.copies; copy++) check(timed.launch(copy, stream), timed.name.c_str());
  check(cudaStreamSynchronize(stream), timed.name.c_str());

  const int launches = std::max(timed.copies, 16);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  for (int i = 0; i < launches; i++) check(timed.launch(i % timed.copies, stream), timed.name.c_str());
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");

  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  std::array<float, 9> times_ms{};
  check(cudaGraphLaunch(exec, stream), timed.name.c_str());
  for (float& ms : times_ms) {
    check(cudaEventRecord(begin, stream), "cudaEventRecord");
    check(cudaGraphLaunch(exec, stream), timed.name.c_str());
    check(cudaEventRecord(end, stream), "cudaEventRecord");
    check(cudaEventSynchronize(end), timed.name.c_str());
    check(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
  }
  std::sort(times_ms.begin(), times_ms.end());
  check(cudaEventDestroy(begin), "cudaEventDestroy");
  check(cudaEventDestroy(end), "cudaEventDestroy");
  check(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  return double(times_ms[times_ms.size() / 2]) * 1000 / launches;
}

}  // namespace freetoken::gpu_check
