#include "api/device.h"

#include "api/device_library.h"
#include "core/log.h"
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

}  // namespace

Result<std::unique_ptr<Ops>> open_cpu(DeviceOptions options) {
  FT_ASSIGN_OR_RETURN(const IsaLevel isa, select_isa_level());
  return std::unique_ptr<Ops>(std::make_unique<CpuOps>(CpuOptions{.threads = options.threads,
                                                                  .isa = isa,
                                                                  .float32_activations = options.float32_activations,
                                                                  .usable_tokens = std::move(options.usable_tokens)}));
}

Result<OpenedDevice> open_device(const LoadOptions& load, DeviceOptions options) {
  OpenedDevice opened;
  if (load.expert_slots > 0 && load.device == DeviceMode::kCpu && load.device_library.empty())
    return InvalidArgument("expert_slots is " + std::to_string(load.expert_slots) +
                           ", but the CPU keeps all experts in its memory; leave it at 0 or choose the device cuda");
  if (!load.device_library.empty()) {
    FT_ASSIGN_OR_RETURN(opened.ops, open_library(load.device_library, options));
    return opened;
  }
  if (load.device != DeviceMode::kCpu) {
    const CudaReport report = probe_cuda("", options.ordinal);
    Status reason;
    if (report.problem == CudaProblem::kNone) {
      Result<std::unique_ptr<Ops>> ops = open_library(report.library, options);
      if (ops.ok()) {
        opened.ops = std::move(*ops);
        opened.may_fall_back = load.device == DeviceMode::kAuto;
        return opened;
      }
      reason = ops.status();
    } else {
      reason = Unsupported(report.message);
    }
    if (load.device == DeviceMode::kCuda) return reason;
    // A CPU-only installation is no news.
    const bool expected = report.problem == CudaProblem::kMissing && !report.asked_for;
    log(expected ? LogLevel::kInfo : LogLevel::kWarning, "computing on the CPU: " + reason.message());
  }
  FT_ASSIGN_OR_RETURN(opened.ops, open_cpu(std::move(options)));
  return opened;
}

}  // namespace freetoken
