// From what the CUDA runtime answered to what a person is told. No CUDA in here: every case can be tested anywhere.
#pragma once
#include <cstdint>
#include <string>

#include "ops/device_entry.h"

namespace freetoken::cuda {

// In the order in which they are asked for; what comes after a failure is not known.
struct ProbeFacts {
  std::string code;            // "sm_80 sm_90 compute_80": what the library was compiled for
  int runtime_version = 0;     // CUDART_VERSION of the build: 13000
  int driver_version = 0;      // cudaDriverGetVersion; 0 without a driver
  int count_error = 0;         // cudaGetDeviceCount; CUDA error numbers, 0 = success
  std::string count_text;      // cudaGetErrorString of it
  int devices = 0;
  int ordinal = 0;             // of the device asked for
  int device_error = 0;        // properties and memory of the device
  std::string device_text;
  std::string name;
  int compute_capability = 0;  // 10 * major + minor
  int64_t total_bytes = 0, free_bytes = 0;
  int kernel_error = 0;        // of the first kernel: is there code for this device
  std::string kernel_text;
  bool kernel_right = false;   // it wrote what it should
};

constexpr int kLeastComputeCapability = 80;  // bf16 in mma.sync, cp.async

DeviceInfo diagnose(const ProbeFacts& facts);

}  // namespace freetoken::cuda
