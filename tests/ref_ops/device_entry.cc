// RefOps as a shared object: what a device library exports (ops/device_entry.h).
#include "ops/device_entry.h"

#include <exception>

#include "ref_ops/ref_ops.h"

namespace freetoken {

extern "C" [[gnu::visibility("default")]] Ops* freetoken_open_device(uint32_t abi, const DeviceOptions& options,
                                                                   std::string* error) {
  if (abi != kDeviceAbi) {
    *error = "this device library was built for ABI " + std::to_string(kDeviceAbi) + ", the core asks for " + std::to_string(abi);
    return nullptr;
  }
  try {
    ref::RefOptions ref = ref::options_from_environment(supported_isa_levels().back());
    ref.float32_activations = options.float32_activations;
    ref.usable_tokens = options.usable_tokens;
    return new ref::RefOps(std::move(ref));
  } catch (const std::exception& e) {
    *error = std::string("the reference device: ") + e.what();
    return nullptr;
  }
}

static_assert(std::is_same_v<decltype(&freetoken_open_device), OpenDevice>);

}  // namespace freetoken
