// Opens the device that computes.
#pragma once
#include <memory>
#include <string>

#include "core/status.h"
#include "freetoken/engine.h"
#include "ops/device_entry.h"

namespace freetoken {

struct OpenedDevice {
  std::unique_ptr<Ops> ops;
  bool may_fall_back = false;  // the GPU was taken because it is there: the CPU may do what it refuses
};

// The CPU, as DeviceMode::kCpu gives it.
Result<std::unique_ptr<Ops>> open_cpu(DeviceOptions options);

// What LoadOptions asks for: device_library, or device. kUnsupported with the reason where that cannot be had; with
// DeviceMode::kAuto the reason is logged and the CPU opened.
Result<OpenedDevice> open_device(const LoadOptions& load, DeviceOptions options);

}  // namespace freetoken
