// How a device that is a shared object of its own is opened: one exported C function with an ABI number.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ops/ops.h"

namespace freetoken {

// Changes with everything that crosses the boundary: Ops, its argument types, WeightSink, ExpertResolver.
constexpr uint32_t kDeviceAbi = 1;
constexpr char kDeviceEntry[] = "freetoken_open_device";

struct DeviceOptions {
  int threads = 1;                      // host threads the device may use
  bool float32_activations = false;
  std::vector<uint8_t> usable_tokens;   // per id of the output matrix: may it be sampled
};

// Returns a new Ops (the caller deletes it), or null with the reason in *error: another ABI, no device, no memory.
using OpenDevice = Ops* (*)(uint32_t abi, const DeviceOptions& options, std::string* error);

}  // namespace freetoken
