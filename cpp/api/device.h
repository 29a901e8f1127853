// Opens the device that computes.
#pragma once
#include <memory>
#include <string>

#include "core/status.h"
#include "freetoken/engine.h"
#include "ops/device_entry.h"

namespace freetoken {

// What will compute.
struct ChosenDevice {
  std::string library;          // a device library (ops/device_entry.h); empty: the CPU
  bool may_fall_back = false;   // a GPU, taken because it is there: the CPU may do what it refuses
  int64_t available_bytes = 0;  // of its own memory, within device_memory_limit_bytes; 0: it has none, or does not say
  Status no_gpu;                // DeviceMode::kAuto chose the CPU: why, if that is worth a word
  bool expected = false;        // no_gpu is that of an installation without the CUDA backend
};

// What LoadOptions asks for: device_library, or device. kUnsupported with the reason where that cannot be had.
Result<ChosenDevice> choose_device(const LoadOptions& load);

Result<std::unique_ptr<Ops>> open_device(const ChosenDevice& chosen, DeviceOptions options);

}  // namespace freetoken
