#include "cuda/runtime/probe.h"

#include <cuda_runtime.h>

#include "cuda/kernels/device.h"
#include "cuda/runtime/probe_facts.h"

#ifndef FREETOKEN_CUDA_CODE
#error "the build must say in FREETOKEN_CUDA_CODE what it compiles for"
#endif

namespace freetoken::cuda {
namespace {

constexpr int kThreads = 32;
constexpr unsigned kFactor = 2654435761u;

__global__ void probe_kernel(unsigned* out) { out[threadIdx.x] = threadIdx.x * kFactor; }

cudaError_t run_kernel(bool* right) {
  unsigned* out = nullptr;
  unsigned host[kThreads] = {};
  cudaError_t error = cudaMalloc(reinterpret_cast<void**>(&out), sizeof host);
  if (error != cudaSuccess) return error;
  FT_LAUNCH((probe_kernel), dim3(1), dim3(kThreads), 0, cudaStream_t{}, out);
  error = cudaGetLastError();
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  if (error == cudaSuccess) error = cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
  const cudaError_t freed = cudaFree(out);
  *right = true;
  for (unsigned i = 0; i < kThreads; i++) *right &= host[i] == i * kFactor;
  return error != cudaSuccess ? error : freed;
}

cudaError_t ask_device(ProbeFacts* facts) {
  cudaDeviceProp properties;
  cudaError_t error = cudaGetDeviceProperties(&properties, facts->ordinal);
  if (error != cudaSuccess) return error;
  facts->name = properties.name;
  facts->compute_capability = 10 * properties.major + properties.minor;
  error = cudaSetDevice(facts->ordinal);
  if (error != cudaSuccess) return error;
  size_t free_bytes = 0, total_bytes = 0;
  error = cudaMemGetInfo(&free_bytes, &total_bytes);
  facts->free_bytes = int64_t(free_bytes);
  facts->total_bytes = int64_t(total_bytes);
  return error;
}

ProbeFacts gather(int ordinal) {
  ProbeFacts facts;
  facts.code = FREETOKEN_CUDA_CODE;
  facts.ordinal = ordinal;
  facts.runtime_version = CUDART_VERSION;
  if (cudaDriverGetVersion(&facts.driver_version) != cudaSuccess) facts.driver_version = 0;
  const cudaError_t counted = cudaGetDeviceCount(&facts.devices);
  facts.count_error = int(counted);
  facts.count_text = cudaGetErrorString(counted);
  if (counted != cudaSuccess) facts.devices = 0;
  if (ordinal < 0 || ordinal >= facts.devices) return facts;
  const cudaError_t answered = ask_device(&facts);
  facts.device_error = int(answered);
  facts.device_text = cudaGetErrorString(answered);
  if (answered != cudaSuccess || facts.compute_capability < kLeastComputeCapability) return facts;
  const cudaError_t ran = run_kernel(&facts.kernel_right);
  facts.kernel_error = int(ran);
  facts.kernel_text = cudaGetErrorString(ran);
  return facts;
}

}  // namespace

DeviceInfo probe_device(int ordinal) {
  const DeviceInfo info = diagnose(gather(ordinal));
  (void)cudaGetLastError();  // what failed here must not be taken for an error of later work
  return info;
}

}  // namespace freetoken::cuda
