// What there is to compute on: the machine, and what the CUDA library says of a GPU, or why there is none.
#include "api/device_library.h"
#include "api/guard.h"
#include "platform/cpu_features.h"
#include "platform/memory_limits.h"
#include "platform/topology.h"

namespace freetoken {
namespace {

CudaProblem problem_of(DeviceProblem problem) {
  switch (problem) {
    case DeviceProblem::kNone: return CudaProblem::kNone;
    case DeviceProblem::kNoDriver: return CudaProblem::kNoDriver;
    case DeviceProblem::kOldDriver: return CudaProblem::kOldDriver;
    case DeviceProblem::kNoDevice: return CudaProblem::kNoDevice;
    case DeviceProblem::kNoSuchDevice: return CudaProblem::kNoSuchDevice;
    case DeviceProblem::kNoDeviceCode: return CudaProblem::kNoDeviceCode;
    case DeviceProblem::kFailed: case DeviceProblem::kRefused: break;
  }
  return CudaProblem::kFailed;
}

CudaReport probe(const std::string& path, int ordinal) {
  CudaReport report;
  const CudaLibrary found = find_cuda_library(path);
  report.library = found.path.empty() ? found.places : found.path;
  report.asked_for = found.asked_for;
  if (found.path.empty()) {
    report.message = "the CUDA backend is not installed (no libfreetoken_cuda.so in " + found.places +
                     "); install it with: FREETOKEN_CUDA=1 pip install .";
    return report;
  }
  const DeviceLibrary library = open_device_library(found.path);
  report.problem = library.problem;
  report.message = library.message;
  if (!library.entry) return report;
  DeviceOptions options;
  options.ordinal = ordinal;
  const DeviceInfo info = call_device(library, options, false).info;
  report.problem = problem_of(info.problem);
  report.message = info.message;
  report.code = info.code;
  report.name = info.name;
  report.devices = info.devices;
  report.compute_capability = info.compute_capability;
  report.driver_version = info.driver_version;
  report.total_bytes = info.total_bytes;
  report.free_bytes = info.free_bytes;
  return report;
}

}  // namespace

HostReport probe_host() {
  HostReport report;
  const Status status = guarded("looking at the machine", [&]() -> Status {
    report.cores = read_topology().usable_cores;
    report.memory_bytes = available_memory().bytes;
    FT_ASSIGN_OR_RETURN(const IsaLevel level, select_isa_level());
    report.isa = isa_name(level);
    return {};
  });
  report.message = status.message();
  return report;
}

const char* cuda_problem_name(CudaProblem problem) {
  switch (problem) {
    case CudaProblem::kNone: return "";
    case CudaProblem::kMissing: return "missing";
    case CudaProblem::kBroken: return "broken";
    case CudaProblem::kAbi: return "abi";
    case CudaProblem::kNoDriver: return "no_driver";
    case CudaProblem::kOldDriver: return "old_driver";
    case CudaProblem::kNoDevice: return "no_device";
    case CudaProblem::kNoSuchDevice: return "no_such_device";
    case CudaProblem::kNoDeviceCode: return "no_device_code";
    case CudaProblem::kFailed: break;
  }
  return "failed";
}

CudaReport probe_cuda(const std::string& path, int ordinal) {
  CudaReport report;
  const Status status = guarded("asking for a GPU", [&]() -> Status {
    report = probe(path, ordinal);
    return {};
  });
  if (!status.ok()) report.problem = CudaProblem::kFailed, report.message = status.message();
  return report;
}

}  // namespace freetoken
