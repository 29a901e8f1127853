// Streams: deferred, in any order that their events allow.
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "cuda/emulator_test/support.h"
#include "cuda/kernels/device.h"
#include "memory/guard.h"

namespace freetoken::cuda {
namespace {

__global__ void add_scaled(const float* w, float* y, float f) { y[threadIdx.x] += f * w[threadIdx.x]; }
__global__ void store(int* p, int v) { *p = v; }

// Two slots filled on one stream and used on another, as expert weights are. Returns whether the sum is right.
bool upload_through_two_slots(uint64_t seed, bool wait_until_free) {
  emu::reseed(seed);
  Streams s;
  EventHandle filled[2], freed[2];
  Device<float> slots(64), y(32);
  Pinned<float> weights(8 * 32);
  EXPECT_EQ(cudaMemsetAsync(y.p, 0, 128, s.b), cudaSuccess);
  float expected = 0.0f;
  for (int e = 0; e < 8; e++) {
    for (int i = 0; i < 32; i++) weights.p[e * 32 + i] = float(e + 1);
    expected += float((e + 1) * (e + 1));
    float* slot = slots.p + e % 2 * 32;
    if (e >= 2 && wait_until_free) {
      EXPECT_EQ(cudaStreamWaitEvent(s.a, freed[e % 2].e), cudaSuccess);
    }
    EXPECT_EQ(cudaMemcpyAsync(slot, weights.p + e * 32, 128, cudaMemcpyHostToDevice, s.a), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(filled[e % 2].e, s.a), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(s.b, filled[e % 2].e), cudaSuccess);
    FT_LAUNCH((add_scaled), dim3(1), dim3(32), 0, s.b, slot, y.p, float(e + 1));
    EXPECT_EQ(cudaEventRecord(freed[e % 2].e, s.b), cudaSuccess);
  }
  const bool right = y.get()[7] == expected;
  emu::reseed(0);
  return right;
}

TEST(Streams, EventsKeepTwoSlotsApart) {
  for (uint64_t seed = 0; seed < 20; seed++) EXPECT_TRUE(upload_through_two_slots(seed, true)) << seed;
}
TEST(SeededBugs, MissingEventGivesWrongResults) {
  int wrong = 0;
  for (uint64_t seed = 0; seed < 20; seed++) wrong += !upload_through_two_slots(seed, false);
  EXPECT_GE(wrong, 5);
}

TEST(SeededBugs, PinnedBufferReusedBeforeItsCopy) {
  Streams s;
  Pinned<int> staging(1);
  Device<int> to(2);
  *staging.p = 1;
  FT_OK(cudaMemcpyAsync(to.p, staging.p, 4, cudaMemcpyHostToDevice, s.a));
  *staging.p = 2;
  EXPECT_EQ(to.get()[0], 2);  // the copy ran late, as it may
}

TEST(Streams, PageableMemoryIsStaged) {
  Streams s;
  Device<int> to(1);
  int from = 1;
  FT_OK(cudaMemcpyAsync(to.p, &from, 4, cudaMemcpyHostToDevice, s.a));
  from = 2;
  int back = 0;
  FT_OK(cudaMemcpyAsync(&back, to.p, 4, cudaMemcpyDeviceToHost, s.a));
  EXPECT_EQ(back, 1);
}

TEST(Streams, TheNullStreamOrdersBlockingStreams) {
  for (uint64_t seed = 0; seed < 10; seed++) {
    emu::reseed(seed);
    cudaStream_t blocking;
    FT_OK(cudaStreamCreate(&blocking));
    Device<int> x(1);
    FT_LAUNCH((store), dim3(1), dim3(1), 0, blocking, x.p, 1);
    FT_LAUNCH((store), dim3(1), dim3(1), 0, nullptr, x.p, 2);
    FT_LAUNCH((store), dim3(1), dim3(1), 0, blocking, x.p, 3);
    EXPECT_EQ(x.get()[0], 3);
    FT_OK(cudaStreamDestroy(blocking));
  }
  emu::reseed(0);
}

TEST(Streams, HostThatPollsPinnedMemorySeesTheWork) {
  Streams s;
  Pinned<uint32_t> flag(1);
  *flag.p = 0;
  int* mapped = nullptr;
  FT_OK(cudaHostGetDevicePointer(&mapped, flag.p, 0));
  FT_LAUNCH((store), dim3(1), dim3(1), 0, s.a, mapped, 7);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (__atomic_load_n(flag.p, __ATOMIC_ACQUIRE) != 7 && std::chrono::steady_clock::now() < until)
    std::this_thread::yield();
  EXPECT_EQ(*flag.p, 7u);
}

TEST(Streams, QueriesMakeProgress) {
  Streams s;
  EventHandle done;
  Device<int> x(1);
  for (int i = 0; i < 20; i++) FT_LAUNCH((store), dim3(1), dim3(1), 0, s.a, x.p, i);
  FT_OK(cudaEventRecord(done.e, s.a));
  EXPECT_EQ(cudaEventQuery(done.e), cudaErrorNotReady);
  while (cudaEventQuery(done.e) == cudaErrorNotReady) std::this_thread::yield();
  EXPECT_EQ(cudaStreamQuery(s.a), cudaSuccess);
}

TEST(Streams, HostFunctionsRunBesideOtherStreamsAndMayNotCallTheRuntime) {
  Streams s;
  struct State {
    std::atomic<bool> other_stream_ran{false};
    std::atomic<int> result{-1};
  } state;
  FT_OK(cudaLaunchHostFunc(
      s.a,
      [](void* user) {
        auto* st = static_cast<State*>(user);
        while (!st->other_stream_ran) std::this_thread::yield();
        st->result = int(cudaStreamSynchronize(nullptr));
      },
      &state));
  FT_OK(cudaLaunchHostFunc(s.a, [](void* user) { static_cast<State*>(user)->result.fetch_add(1000); }, &state));
  Device<int> x(1);
  FT_LAUNCH((store), dim3(1), dim3(1), 0, s.b, x.p, 1);
  FT_OK(cudaStreamSynchronize(s.b));
  state.other_stream_ran = true;
  FT_OK(cudaStreamSynchronize(s.a));
  EXPECT_EQ(state.result, 1000 + int(cudaErrorNotPermitted));
  cudaGetLastError();
}

TEST(Memory, WhatIsWrongIsRefused) {
  Device<int> x(4);
  int host = 0;
  EXPECT_EQ(cudaMemcpy(&host, x.p, 4, cudaMemcpyHostToDevice), cudaErrorInvalidMemcpyDirection);
  EXPECT_EQ(cudaMemcpy(&host, x.p + 4, 4, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(x.p + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  int* p = nullptr;
  size_t free_bytes, total_bytes;
  FT_OK(cudaMemGetInfo(&free_bytes, &total_bytes));
  EXPECT_EQ(free_bytes, total_bytes - 16);
  EXPECT_EQ(cudaMalloc(&p, free_bytes + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(p, nullptr);
  cudaGetLastError();
}

TEST(Memory, NewMemoryIsPoison) {
  Device<uint32_t> x(3);
  EXPECT_EQ(x.get(), (std::vector<uint32_t>(3, ~0u)));
}

TEST(SeededBugs, HostReadsDeviceMemory) {
  ASSERT_TRUE(emu::host_access_is_checked()) << "this CPU has no memory protection keys";
  FT_EXPECT_DEATH(
      {
        Device<int> x(1);
        volatile int v = *x.p;
        static_cast<void>(v);
      },
      "");
}

}  // namespace
}  // namespace freetoken::cuda
