// What a person is told for every answer of the CUDA runtime. The error numbers are those of driver_types.h.
#include "cuda/runtime/probe_facts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

namespace freetoken::cuda {
namespace {

ProbeFacts working() {
  ProbeFacts f;
  f.code = "sm_80 sm_90 compute_80";
  f.runtime_version = 13000, f.driver_version = 13010;
  f.devices = 2, f.ordinal = 1;
  f.name = "NVIDIA H200", f.compute_capability = 90;
  f.total_bytes = 141, f.free_bytes = 140;
  f.kernel_right = true;
  return f;
}

TEST(ProbeFacts, AWorkingGpuHasNoProblem) {
  const DeviceInfo info = diagnose(working());
  EXPECT_EQ(info.problem, DeviceProblem::kNone);
  EXPECT_EQ(info.message, "");
  EXPECT_EQ(info.backend, "cuda");
  EXPECT_EQ(info.name, "NVIDIA H200");
  EXPECT_EQ(info.code, "sm_80 sm_90 compute_80");
  EXPECT_EQ(info.devices, 2);
  EXPECT_EQ(info.compute_capability, 90);
  EXPECT_EQ(info.driver_version, 13010);
  EXPECT_EQ(info.total_bytes, 141);
  EXPECT_EQ(info.free_bytes, 140);
}

struct Case {
  const char* name;
  std::function<void(ProbeFacts&)> change;
  DeviceProblem problem;
  std::vector<std::string> said;  // what, the number, the way out
};

TEST(ProbeFacts, EveryFailureIsOneLineWithANumberAndAWayOut) {
  const std::vector<Case> cases = {
      {"no driver", [](ProbeFacts& f) { f.driver_version = 0, f.count_error = 35, f.devices = 0; }, DeviceProblem::kNoDriver,
       {"no NVIDIA driver", "driver version 0", "install driver 580"}},
      {"old driver", [](ProbeFacts& f) { f.driver_version = 12080, f.count_error = 35, f.devices = 0; },
       DeviceProblem::kOldDriver, {"too old", "CUDA 12.8", "CUDA 13.0", "install driver 580"}},
      {"old driver, old backend",
       [](ProbeFacts& f) { f.runtime_version = 12090, f.driver_version = 11080, f.count_error = 35, f.devices = 0; },
       DeviceProblem::kOldDriver, {"CUDA 11.8", "CUDA 12.9", "install driver 525"}},
      {"a driver that refuses", [](ProbeFacts& f) { f.count_error = 35, f.devices = 0; }, DeviceProblem::kOldDriver,
       {"refuses", "error 35", "install driver 580"}},
      {"no device", [](ProbeFacts& f) { f.count_error = 100, f.devices = 0; }, DeviceProblem::kNoDevice,
       {"shows no GPU", "error 100", "CUDA_VISIBLE_DEVICES"}},
      {"count of zero", [](ProbeFacts& f) { f.devices = 0; }, DeviceProblem::kNoDevice, {"shows no GPU", "nvidia-smi"}},
      {"driver broken", [](ProbeFacts& f) { f.count_error = 803, f.count_text = "combination", f.devices = 0; },
       DeviceProblem::kFailed, {"combination", "error 803", "nvidia-smi"}},
      {"ordinal", [](ProbeFacts& f) { f.ordinal = 2; }, DeviceProblem::kNoSuchDevice,
       {"no GPU 2", "only 2", "another number"}},
      {"negative ordinal", [](ProbeFacts& f) { f.ordinal = -1; }, DeviceProblem::kNoSuchDevice, {"no GPU -1"}},
      {"device broken", [](ProbeFacts& f) { f.device_error = 46, f.device_text = "busy"; }, DeviceProblem::kFailed,
       {"GPU 1 (NVIDIA H200)", "busy", "error 46"}},
      {"too old a device", [](ProbeFacts& f) { f.compute_capability = 75, f.kernel_right = false; },
       DeviceProblem::kNoDeviceCode, {"compute capability 7.5", "8.0", "use the CPU"}},
      {"no code", [](ProbeFacts& f) { f.compute_capability = 120, f.kernel_error = 209, f.kernel_right = false; },
       DeviceProblem::kNoDeviceCode,
       {"compute capability 12.0", "sm_80 sm_90 compute_80", "error 209", "FREETOKEN_CUDA_ARCHS=120 pip install ."}},
      {"PTX of a newer toolkit", [](ProbeFacts& f) { f.kernel_error = 222; }, DeviceProblem::kNoDeviceCode, {"error 222"}},
      {"kernel fails", [](ProbeFacts& f) { f.kernel_error = 719, f.kernel_text = "launch failure"; }, DeviceProblem::kFailed,
       {"launch failure", "error 719"}},
      {"kernel wrong", [](ProbeFacts& f) { f.kernel_right = false; }, DeviceProblem::kFailed, {"wrong", "do not use it"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    ProbeFacts facts = working();
    c.change(facts);
    const DeviceInfo info = diagnose(facts);
    EXPECT_EQ(info.problem, c.problem) << info.message;
    EXPECT_EQ(std::count(info.message.begin(), info.message.end(), '\n'), 0);
    for (const std::string& part : c.said) EXPECT_NE(info.message.find(part), std::string::npos) << info.message;
  }
}

}  // namespace
}  // namespace freetoken::cuda
