// A device library (ops/device_entry.h) that says what the environment tells it to:
//   FAKE_DEVICE_ABI       its ABI number
//   FAKE_DEVICE_PROBLEM   DeviceProblem by number, found when asked
//   FAKE_DEVICE_OPENS     "refused": opening fails; "no_kv": it opens and has no memory for KV; otherwise it opens
#include <cstdlib>
#include <memory>
#include <string>

#include "engine/faulty_ops.h"
#include "ops/device_entry.h"
#include "ref_ops/ref_ops.h"

namespace freetoken {
namespace {

std::string setting(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

int number(const char* name, int otherwise) {
  const std::string text = setting(name);
  return text.empty() ? otherwise : std::stoi(text);
}

}  // namespace

extern "C" [[gnu::visibility("default")]] uint32_t freetoken_device(uint32_t abi, const DeviceRequest* request,
                                                                  DeviceReply* reply) {
  const uint32_t own = uint32_t(number("FAKE_DEVICE_ABI", kDeviceAbi));
  if (abi != own) return own;
  DeviceInfo& info = reply->info;
  info.backend = "fake";
  info.problem = DeviceProblem(number("FAKE_DEVICE_PROBLEM", 0));
  if (info.problem != DeviceProblem::kNone) {
    info.message = "the fake has problem " + std::to_string(int(info.problem));
    return own;
  }
  info.name = "Fake " + std::to_string(request->options.ordinal);
  info.code = "sm_80 compute_80";
  info.devices = 2, info.compute_capability = 89, info.driver_version = 13010;
  info.total_bytes = int64_t(24) << 30, info.free_bytes = int64_t(23) << 30;
  if (!request->open) return own;
  const std::string opens = setting("FAKE_DEVICE_OPENS");
  if (opens == "refused") {
    info.problem = DeviceProblem::kRefused, info.message = "the fake opens nothing";
    return own;
  }
  request->host.log(3, "the fake was opened");
  auto faults = std::make_shared<testing::FaultyOps::Faults>();
  faults->no_kv = opens == "no_kv";
  ref::RefOptions options = ref::options_from_environment(supported_isa_levels().back());
  options.float32_activations = request->options.float32_activations;
  options.usable_tokens = request->options.usable_tokens;
  reply->ops = new testing::FaultyOps(std::make_unique<ref::RefOps>(std::move(options)), std::move(faults));
  return own;
}

}  // namespace freetoken
