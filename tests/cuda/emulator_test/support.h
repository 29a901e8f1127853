// Device and pinned arrays, and what the tests of the emulator look for in a death.
#pragma once
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <vector>

#include "emulator/options.h"

namespace freetoken::cuda {

#define FT_OK(call) ASSERT_EQ((call), cudaSuccess)

template <class T>
struct Device {
  T* p = nullptr;
  size_t n;
  explicit Device(size_t count) : n(count) { EXPECT_EQ(cudaMalloc(&p, n * sizeof(T)), cudaSuccess); }
  explicit Device(const std::vector<T>& v) : Device(v.size()) {
    EXPECT_EQ(cudaMemcpy(p, v.data(), n * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
  }
  Device(const Device&) = delete;
  ~Device() { cudaFree(p); }
  std::vector<T> get() const {
    std::vector<T> v(n);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return v;
  }
};

template <class T>
struct Pinned {
  T* p = nullptr;
  explicit Pinned(size_t count) { EXPECT_EQ(cudaMallocHost(&p, count * sizeof(T)), cudaSuccess); }
  Pinned(const Pinned&) = delete;
  ~Pinned() { cudaFreeHost(p); }
};

struct Streams {
  cudaStream_t a = nullptr, b = nullptr;
  Streams() {
    EXPECT_EQ(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking), cudaSuccess);
  }
  Streams(const Streams&) = delete;
  ~Streams() {
    cudaStreamDestroy(a);
    cudaStreamDestroy(b);
  }
};

struct EventHandle {
  cudaEvent_t e = nullptr;
  EventHandle() { EXPECT_EQ(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), cudaSuccess); }
  EventHandle(const EventHandle&) = delete;
  ~EventHandle() { cudaEventDestroy(e); }
};

// A death in a process of its own: the emulator has threads.
#define FT_EXPECT_DEATH(statement, pattern)       \
  GTEST_FLAG_SET(death_test_style, "threadsafe"); \
  EXPECT_DEATH(statement, pattern)

}  // namespace freetoken::cuda
