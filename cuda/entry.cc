// The one symbol that the CUDA library exports: ops/device_entry.h.
#include <exception>
#include <new>
#include <string>
#include <type_traits>

#include "cuda/ops/cuda_ops.h"
#include "cuda/runtime/probe.h"
#include "ops/device_entry.h"

namespace freetoken {
namespace {

void answer(const DeviceRequest& request, DeviceReply* reply) {
  reply->info = cuda::probe_device(request.options.ordinal);
  if (reply->info.problem != DeviceProblem::kNone || !request.open) return;
  Result<std::unique_ptr<Ops>> ops = cuda::make_cuda_ops(request.options, request.host);
  if (ops.ok()) {
    reply->ops = ops->release();
  } else {
    reply->info.problem = DeviceProblem::kRefused;
    reply->info.message = ops.status().message();
  }
}

}  // namespace

extern "C" [[gnu::visibility("default")]] uint32_t freetoken_device(uint32_t abi, const DeviceRequest* request,
                                                                  DeviceReply* reply) {
  if (abi != kDeviceAbi) return kDeviceAbi;
  try {
    answer(*request, reply);
  } catch (const std::exception& e) {  // bad_alloc, above all: nothing may cross the boundary
    reply->info.problem = DeviceProblem::kFailed;
    reply->info.message = std::string("the CUDA backend failed to start: ") + e.what();
  }
  return kDeviceAbi;
}

static_assert(std::is_same_v<decltype(&freetoken_device), DeviceEntry>);

}  // namespace freetoken
