// RefOps as a shared object: what a device library exports (ops/device_entry.h).
#include "ops/device_entry.h"

#include <exception>

#include "ref_ops/ref_ops.h"

namespace freetoken {

extern "C" [[gnu::visibility("default")]] uint32_t freetoken_device(uint32_t abi, const DeviceRequest* request,
                                                                  DeviceReply* reply) {
  if (abi != kDeviceAbi) return kDeviceAbi;
  reply->info.backend = reply->info.name = "ref";
  reply->info.devices = 1;
  auto refuse = [&](DeviceProblem problem, const std::string& message) {
    reply->info.problem = problem;
    reply->info.message = "the reference device: " + message;
    return kDeviceAbi;
  };
  const DeviceOptions& options = request->options;
  if (options.ordinal != 0)
    return refuse(DeviceProblem::kNoSuchDevice, "there is only number 0, not " + std::to_string(options.ordinal));
  if (!request->open) return kDeviceAbi;
  if (options.expert_slots != 0)
    return refuse(DeviceProblem::kRefused, "it has no expert slots; leave them at 0");
  try {
    ref::RefOptions ref = ref::options_from_environment(supported_isa_levels().back());
    ref.float32_activations = options.float32_activations;
    ref.usable_tokens = options.usable_tokens;
    reply->ops = new ref::RefOps(std::move(ref));
  } catch (const std::exception& e) {
    return refuse(DeviceProblem::kFailed, e.what());
  }
  return kDeviceAbi;
}

static_assert(std::is_same_v<decltype(&freetoken_device), DeviceEntry>);

}  // namespace freetoken
