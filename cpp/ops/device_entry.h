// How a device that is a shared object of its own is opened: one exported C function with an ABI number.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ops/ops.h"

namespace freetoken {

// Changes with everything that crosses the boundary: the structs below, Ops, its argument types, WeightSink, ExpertResolver.
constexpr uint32_t kDeviceAbi = 2;
constexpr char kDeviceEntry[] = "freetoken_device";

// What the host lends a device, for as long as an Ops of it lives. Callable from any thread.
struct HostServices {
  // One line into the host's log; level as LogLevel in core/log.h.
  void (*log)(int level, const char* text) = nullptr;
};

struct DeviceOptions {
  int threads = 1;                      // host threads the device may use
  bool float32_activations = false;
  std::vector<uint8_t> usable_tokens;   // per id of the output matrix: may it be sampled
  int ordinal = 0;                      // which of several devices
  int64_t memory_limit_bytes = 0;       // of device memory; 0 = what is free
  int expert_slots = 0;                 // experts in device memory at once, over all layers; 0 = all of them
};

enum class DeviceProblem : int32_t {
  kNone,
  kNoDriver,
  kOldDriver,
  kNoDevice,
  kNoSuchDevice,   // the ordinal
  kNoDeviceCode,   // the library holds no code for this device
  kFailed,         // the device does not work
  kRefused,        // it works, but not with these options
};

// What there is; numbers are 0 and texts empty as far as it is not known.
struct DeviceInfo {
  DeviceProblem problem = DeviceProblem::kNone;
  std::string message;                  // one line: what, the number, the way out; empty without a problem
  std::string backend;                  // "cuda"
  std::string code;                     // the devices it was compiled for: "sm_80 sm_90 compute_80"
  std::string name;                     // of the device
  int devices = 0;
  int compute_capability = 0;           // 10 * major + minor
  int driver_version = 0;               // 1000 * major + 10 * minor of the newest CUDA that the driver supports
  int64_t total_bytes = 0, free_bytes = 0;
};

struct DeviceRequest {
  HostServices host;
  DeviceOptions options;
  bool open = true;                     // false: tell what there is for options.ordinal, and open nothing
};

struct DeviceReply {
  DeviceInfo info;
  Ops* ops = nullptr;                   // the caller deletes it; null when only asked, or with info.problem
};

// Returns its own kDeviceAbi. Where that is not `abi` it has read and written nothing, so an older or a newer library can
// always be told from a fitting one.
using DeviceEntry = uint32_t (*)(uint32_t abi, const DeviceRequest* request, DeviceReply* reply);

}  // namespace freetoken
