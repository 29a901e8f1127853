// Device memory for timings: contents are arbitrary bytes where speed does not depend on them.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

namespace freetoken::gpu_check {

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "ft_cuda_bench: %s: %s (%d)\n", what, cudaGetErrorString(error), int(error));
  std::exit(1);
}

class DeviceMemory {
 public:
  // Bytes of the pattern are small bf16 and f32 numbers, and valid codes and scales of every format.
  explicit DeviceMemory(size_t bytes, int pattern = 0x3c) : bytes_(bytes) {
    check(cudaMalloc(&data_, bytes), "cudaMalloc");
    check(cudaMemset(data_, pattern, bytes), "cudaMemset");
  }
  template <class T>
  explicit DeviceMemory(const std::vector<T>& values) : DeviceMemory(values.size() * sizeof(T)) {
    check(cudaMemcpy(data_, values.data(), bytes_, cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() { cudaFree(data_); }
  uint8_t* bytes() const { return static_cast<uint8_t*>(data_); }
  template <class T>
  T* as() const { return static_cast<T*>(data_); }
  size_t size() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace freetoken::gpu_check
