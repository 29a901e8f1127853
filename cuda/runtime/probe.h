// Whether there is a GPU that this library can use.
#pragma once
#include "ops/device_entry.h"

namespace freetoken::cuda {

// Asks the driver, then runs one small kernel. Leaves the device current and no error behind.
DeviceInfo probe_device(int ordinal);

}  // namespace freetoken::cuda
