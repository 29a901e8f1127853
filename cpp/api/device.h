// Opens the device that computes.
#pragma once
#include <memory>
#include <string>

#include "core/status.h"
#include "ops/device_entry.h"

namespace freetoken {

// The CPU when `library` is empty, otherwise what the shared object's entry (ops/device_entry.h) returns. kUnsupported with
// the reason when it cannot be opened.
Result<std::unique_ptr<Ops>> open_device(const std::string& library, DeviceOptions options);

}  // namespace freetoken
