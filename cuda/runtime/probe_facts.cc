#include "cuda/runtime/probe_facts.h"

namespace freetoken::cuda {
namespace {

// CUDA's error numbers, as in driver_types.h.
constexpr int kErrorInsufficientDriver = 35;
constexpr int kErrorNoDevice = 100;
constexpr int kErrorNoKernelImage = 209;
constexpr int kErrorInvalidPtx = 218;
constexpr int kErrorUnsupportedPtx = 222;

std::string version(int number) { return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10); }
std::string capability(int number) { return std::to_string(number / 10) + "." + std::to_string(number % 10); }
std::string error_number(int error) { return "CUDA error " + std::to_string(error); }

// The oldest driver for every CUDA of the same major number.
std::string needed_driver(int runtime_version) {
  switch (runtime_version / 1000) {
    case 12: return "driver 525 or newer";
    case 13: return "driver 580 or newer";
  }
  return "a driver for CUDA " + std::to_string(runtime_version / 1000);
}

std::string device_name(const ProbeFacts& f) {
  return "GPU " + std::to_string(f.ordinal) + (f.name.empty() ? "" : " (" + f.name + ")");
}

struct Finding {
  DeviceProblem problem = DeviceProblem::kNone;
  std::string message;
};

Finding find_driver(const ProbeFacts& f) {
  if (f.driver_version == 0)
    return {DeviceProblem::kNoDriver, "there is no NVIDIA driver (driver version 0, " + error_number(f.count_error) +
                                          "): install " + needed_driver(f.runtime_version)};
  if (f.driver_version / 1000 < f.runtime_version / 1000)
    return {DeviceProblem::kOldDriver, "the NVIDIA driver is too old: it supports CUDA " + version(f.driver_version) +
                                           ", this backend is CUDA " + version(f.runtime_version) + ": install " +
                                           needed_driver(f.runtime_version)};
  return {};
}

Finding find_device(const ProbeFacts& f) {
  if (f.count_error == kErrorNoDevice || (f.count_error == 0 && f.devices == 0))
    return {DeviceProblem::kNoDevice, "the NVIDIA driver (CUDA " + version(f.driver_version) + ") shows no GPU (" +
                                          error_number(kErrorNoDevice) + "): see nvidia-smi, and CUDA_VISIBLE_DEVICES if it is set"};
  if (f.count_error != 0)
    return {DeviceProblem::kFailed, "the NVIDIA driver does not answer: " + f.count_text + " (" + error_number(f.count_error) +
                                        "): see nvidia-smi"};
  if (f.ordinal < 0 || f.ordinal >= f.devices)
    return {DeviceProblem::kNoSuchDevice, "there is no GPU " + std::to_string(f.ordinal) + ", only " +
                                              std::to_string(f.devices) + " (numbered from 0): choose another number"};
  if (f.device_error != 0)
    return {DeviceProblem::kFailed, device_name(f) + " does not answer: " + f.device_text + " (" +
                                        error_number(f.device_error) + "): see nvidia-smi"};
  return {};
}

Finding find_code(const ProbeFacts& f) {
  const std::string what = device_name(f) + " has compute capability " + capability(f.compute_capability);
  if (f.compute_capability < kLeastComputeCapability)
    return {DeviceProblem::kNoDeviceCode, what + ", the kernels need " + capability(kLeastComputeCapability) +
                                              " or newer: use the CPU"};
  if (f.kernel_error == kErrorNoKernelImage || f.kernel_error == kErrorInvalidPtx || f.kernel_error == kErrorUnsupportedPtx)
    return {DeviceProblem::kNoDeviceCode,
            what + ", this build has code for " + f.code + " only (" + error_number(f.kernel_error) +
                "): build again with FREETOKEN_CUDA=1 FREETOKEN_CUDA_ARCHS=" + std::to_string(f.compute_capability) +
                " pip install ."};
  if (f.kernel_error != 0)
    return {DeviceProblem::kFailed, device_name(f) + " failed its first kernel: " + f.kernel_text + " (" +
                                        error_number(f.kernel_error) + "): see nvidia-smi and the kernel log"};
  if (!f.kernel_right)
    return {DeviceProblem::kFailed, device_name(f) + " computed its first kernel wrong: do not use it"};
  return {};
}

}  // namespace

DeviceInfo diagnose(const ProbeFacts& f) {
  Finding found = find_driver(f);
  if (found.problem == DeviceProblem::kNone) found = find_device(f);
  if (found.problem == DeviceProblem::kNone) found = find_code(f);
  // A driver that knows a newer CUDA and still refuses for its age.
  if (found.problem == DeviceProblem::kFailed && f.count_error == kErrorInsufficientDriver)
    found = {DeviceProblem::kOldDriver, "the NVIDIA driver (CUDA " + version(f.driver_version) + ") refuses CUDA " +
                                            version(f.runtime_version) + " (" + error_number(f.count_error) + "): install " +
                                            needed_driver(f.runtime_version)};
  DeviceInfo info;
  info.problem = found.problem;
  info.message = std::move(found.message);
  info.backend = "cuda";
  info.code = f.code;
  info.name = f.name;
  info.devices = f.devices;
  info.compute_capability = f.compute_capability;
  info.driver_version = f.driver_version;
  info.total_bytes = f.total_bytes;
  info.free_bytes = f.free_bytes;
  return info;
}

}  // namespace freetoken::cuda
