// Capture and replay.
#include "cuda/emulator_test/support.h"
#include "cuda/kernels/device.h"

namespace freetoken::cuda {
namespace {

__global__ void add(int* p, int v) { *p += v; }
__global__ void add_from(int* p, const int* v) { *p += *v; }

struct Exec {
  cudaGraphExec_t e = nullptr;
  explicit Exec(cudaGraph_t graph) {
    EXPECT_EQ(cudaGraphInstantiate(&e, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
  Exec(const Exec&) = delete;
  ~Exec() { cudaGraphExecDestroy(e); }
};

TEST(Graphs, ReplayWithTheArgumentsOfTheCapture) {
  Streams s;
  Device<int> x(std::vector<int>{0});
  Pinned<int> in(1);
  Device<int> input(1);
  int by_value = 10;
  FT_OK(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeThreadLocal));
  FT_OK(cudaMemcpyAsync(input.p, in.p, 4, cudaMemcpyHostToDevice, s.a));
  FT_LAUNCH((add), dim3(1), dim3(1), 0, s.a, x.p, by_value);
  FT_LAUNCH((add_from), dim3(1), dim3(1), 0, s.a, x.p, input.p);
  cudaGraph_t graph;
  FT_OK(cudaStreamEndCapture(s.a, &graph));
  size_t nodes = 0;
  FT_OK(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 3u);
  Exec exec(graph);
  EXPECT_EQ(x.get()[0], 0);  // nothing ran yet
  by_value = 99;
  for (int i = 1; i <= 3; i++) {
    *in.p = i;
    FT_OK(cudaGraphLaunch(exec.e, s.a));
    FT_OK(cudaStreamSynchronize(s.a));
  }
  EXPECT_EQ(x.get()[0], 3 * 10 + 1 + 2 + 3);
}

TEST(Graphs, ForkAndJoinByEvents) {
  for (uint64_t seed = 0; seed < 10; seed++) {
    emu::reseed(seed);
    Streams s;
    EventHandle fork, join;
    Device<int> x(std::vector<int>{0, 0}), sum(std::vector<int>{0});
    FT_OK(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeThreadLocal));
    FT_LAUNCH((add), dim3(1), dim3(1), 0, s.a, x.p, 1);
    FT_OK(cudaEventRecord(fork.e, s.a));
    FT_OK(cudaStreamWaitEvent(s.b, fork.e));
    FT_LAUNCH((add_from), dim3(1), dim3(1), 0, s.b, x.p + 1, x.p);
    FT_OK(cudaEventRecord(join.e, s.b));
    FT_OK(cudaStreamWaitEvent(s.a, join.e));
    FT_LAUNCH((add_from), dim3(1), dim3(1), 0, s.a, sum.p, x.p + 1);
    cudaGraph_t graph;
    FT_OK(cudaStreamEndCapture(s.a, &graph));
    Exec exec(graph);
    FT_OK(cudaGraphLaunch(exec.e, s.a));
    FT_OK(cudaGraphLaunch(exec.e, s.a));
    EXPECT_EQ(sum.get()[0], 1 + (1 + 2));
  }
  emu::reseed(0);
}

TEST(Graphs, WhatACaptureForbids) {
  Streams s;
  Device<int> x(1);
  EventHandle event;
  cudaGraph_t graph;
  FT_OK(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeThreadLocal));
  EXPECT_EQ(cudaStreamSynchronize(s.a), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(s.a, &graph), cudaErrorStreamCaptureInvalidated);

  FT_OK(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeGlobal));
  void* p = nullptr;
  EXPECT_EQ(cudaMalloc(&p, 16), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(s.a, &graph), cudaErrorStreamCaptureInvalidated);

  FT_OK(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeThreadLocal));
  int pageable = 1;
  EXPECT_EQ(cudaMemcpyAsync(x.p, &pageable, 4, cudaMemcpyHostToDevice, s.a), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(s.a, &graph), cudaErrorStreamCaptureInvalidated);

  FT_OK(cudaEventRecord(event.e, s.b));
  FT_OK(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeThreadLocal));
  EXPECT_EQ(cudaStreamWaitEvent(s.a, event.e), cudaErrorStreamCaptureIsolation);
  EXPECT_EQ(cudaStreamEndCapture(s.a, &graph), cudaErrorStreamCaptureInvalidated);

  FT_OK(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeThreadLocal));
  FT_OK(cudaEventRecord(event.e, s.a));
  FT_OK(cudaStreamWaitEvent(s.b, event.e));
  FT_LAUNCH((add), dim3(1), dim3(1), 0, s.b, x.p, 1);
  EXPECT_EQ(cudaEventQuery(event.e), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaStreamEndCapture(s.a, &graph), cudaErrorStreamCaptureUnjoined);
  cudaGetLastError();
}

TEST(SeededBugs, StaleAddressInAGraph) {
  FT_EXPECT_DEATH(
      {
        Streams s;
        cudaGraph_t graph;
        {
          Device<int> x(std::vector<int>{0});
          cudaStreamBeginCapture(s.a, cudaStreamCaptureModeThreadLocal);
          FT_LAUNCH((add), dim3(1), dim3(1), 0, s.a, x.p, 1);
          cudaStreamEndCapture(s.a, &graph);
        }
        Device<int> moved(std::vector<int>{0});
        Exec exec(graph);
        cudaGraphLaunch(exec.e, s.a);
        cudaStreamSynchronize(s.a);
      },
      "kernel \\(add\\): .* device memory that was freed");
}

}  // namespace
}  // namespace freetoken::cuda
