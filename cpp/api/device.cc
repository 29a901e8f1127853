#include "api/device.h"

#include <algorithm>

#include "api/device_library.h"
#include "cpu/cpu_ops.h"

namespace freetoken {
namespace {

Result<std::unique_ptr<Ops>> open_library(const std::string& path, const DeviceOptions& options) {
  const DeviceLibrary library = open_device_library(path);
  if (!library.entry) return Unsupported(library.message);
  DeviceReply reply = call_device(library, options, true);
  std::unique_ptr<Ops> ops(reply.ops);
  if (!ops) return Unsupported(reply.info.message.empty() ? path + " opened no device and gave no reason" : reply.info.message);
  return ops;
}

Result<std::unique_ptr<Ops>> open_cpu(DeviceOptions options) {
  FT_ASSIGN_OR_RETURN(const IsaLevel isa, select_isa_level());
  return std::unique_ptr<Ops>(std::make_unique<CpuOps>(CpuOptions{.threads = options.threads,
                                                                  .isa = isa,
                                                                  .float32_activations = options.float32_activations,
                                                                  .usable_tokens = std::move(options.usable_tokens)}));
}

int64_t available_of(const LoadOptions& load, int64_t free_bytes) {
  return load.device_memory_limit_bytes > 0 ? std::min(load.device_memory_limit_bytes, free_bytes) : free_bytes;
}

}  // namespace

Result<ChosenDevice> choose_device(const LoadOptions& load) {
  ChosenDevice chosen;
  if (!load.device_library.empty()) {
    const CudaReport report = probe_cuda(load.device_library, load.device_ordinal);
    if (report.problem != CudaProblem::kNone) return Unsupported(report.message);
    chosen.library = load.device_library;
    chosen.available_bytes = available_of(load, report.free_bytes);
    return chosen;
  }
  if (load.device == DeviceMode::kCpu) {
    if (load.expert_slots > 0)
      return InvalidArgument("expert_slots is " + std::to_string(load.expert_slots) +
                             ", but the CPU keeps all experts in its memory; leave it at 0 or choose the device cuda");
    return chosen;
  }
  const CudaReport report = probe_cuda("", load.device_ordinal);
  if (report.problem == CudaProblem::kNone) {
    chosen.library = report.library;
    chosen.may_fall_back = load.device == DeviceMode::kAuto;
    chosen.available_bytes = available_of(load, report.free_bytes);
    return chosen;
  }
  chosen.no_gpu = Unsupported(report.message);
  if (load.device == DeviceMode::kCuda) return chosen.no_gpu;
  chosen.expected = report.problem == CudaProblem::kMissing && !report.asked_for;
  return chosen;
}

Result<std::unique_ptr<Ops>> open_device(const ChosenDevice& chosen, DeviceOptions options) {
  if (!chosen.library.empty()) return open_library(chosen.library, options);
  return open_cpu(std::move(options));
}

}  // namespace freetoken
