// Which device an engine computes on, and what is said when it is not the GPU. The GPU is the fake of tests/fakes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "api/checkpoint_files.h"
#include "freetoken/device.h"

namespace freetoken {
namespace {

using namespace freetoken::testing;

class Device : public ::testing::Test {
 protected:
  Device() : files(moe_spec(), random_weights(moe_spec(), 83, mixed_formats)) {
    set("FREETOKEN_CUDA_LIB", FT_FAKE_LIBRARY);
  }
  ~Device() override {
    for (const auto& [name, value] : before) value.empty() ? unsetenv(name.c_str()) : setenv(name.c_str(), value.c_str(), 1);
  }
  void set(const char* name, const std::string& value) {
    const char* old = std::getenv(name);
    before.emplace(name, old ? old : "");
    value.empty() ? unsetenv(name) : setenv(name, value.c_str(), 1);
  }
  // The device that a loaded engine computes on, or the error.
  std::string load(DeviceMode mode) {
    LoadOptions options = files.options;
    options.device = mode;
    std::unique_ptr<Engine> engine;
    ::testing::internal::CaptureStderr();
    const Status status = Engine::load(options, std::make_shared<CollectingSink>(), &engine);
    log = ::testing::internal::GetCapturedStderr();
    if (!status.ok()) {
      EXPECT_EQ(status.code(), StatusCode::kUnsupported);
      return status.message();
    }
    return engine->stats().device;
  }
  CheckpointFiles files;
  std::string log;
  std::map<std::string, std::string> before;
};

TEST_F(Device, AutoTakesTheGpuAndItsLogIsOurs) {
  EXPECT_EQ(load(DeviceMode::kAuto), "ref");
  EXPECT_NE(log.find("freetoken error: the fake was opened\n"), std::string::npos) << log;
  EXPECT_EQ(load(DeviceMode::kCuda), "ref");
  EXPECT_EQ(load(DeviceMode::kCpu), "cpu");
  EXPECT_EQ(log, "");
}

TEST_F(Device, EveryProblemIsReportedAndLeavesTheCpu) {
  const std::map<int, CudaProblem> problems = {
      {1, CudaProblem::kNoDriver}, {2, CudaProblem::kOldDriver},    {3, CudaProblem::kNoDevice},
      {4, CudaProblem::kNoSuchDevice}, {5, CudaProblem::kNoDeviceCode}, {6, CudaProblem::kFailed}};
  for (const auto& [number, problem] : problems) {
    set("FAKE_DEVICE_PROBLEM", std::to_string(number));
    const std::string message = "the fake has problem " + std::to_string(number);
    const CudaReport report = probe_cuda();
    EXPECT_EQ(report.problem, problem) << number;
    EXPECT_EQ(report.message, message);
    EXPECT_TRUE(report.asked_for);
    EXPECT_EQ(load(DeviceMode::kAuto), "cpu");
    EXPECT_EQ(log, "freetoken warning: computing on the CPU: " + message + "\n");
    EXPECT_EQ(load(DeviceMode::kCuda), message);
  }
}

TEST_F(Device, AnotherAbiIsNamedWithBothNumbers) {
  set("FAKE_DEVICE_ABI", "41");
  const CudaReport report = probe_cuda();
  EXPECT_EQ(report.problem, CudaProblem::kAbi);
  EXPECT_NE(report.message.find("ABI 41, this core needs 2"), std::string::npos) << report.message;
  EXPECT_EQ(load(DeviceMode::kAuto), "cpu");
  EXPECT_EQ(load(DeviceMode::kCuda), report.message);
}

TEST_F(Device, MissingAndBrokenFiles) {
  for (const auto& [path, problem, named] : std::vector<std::tuple<std::string, CudaProblem, std::string>>{
           {"/nowhere/libfreetoken_cuda.so", CudaProblem::kMissing, "no device library at /nowhere/libfreetoken_cuda.so"},
           {"/etc/hostname", CudaProblem::kBroken, "cannot be loaded"},
           {"libm.so.6", CudaProblem::kBroken, "exports no freetoken_device"}}) {
    set("FREETOKEN_CUDA_LIB", path);
    const CudaReport report = probe_cuda();
    EXPECT_EQ(report.problem, problem) << path;
    EXPECT_NE(report.message.find(named), std::string::npos) << report.message;
    EXPECT_EQ(std::count(report.message.begin(), report.message.end(), '\n'), 0);
    EXPECT_EQ(load(DeviceMode::kAuto), "cpu");
    EXPECT_NE(log.find(named), std::string::npos) << log;
    EXPECT_EQ(load(DeviceMode::kCuda), report.message);
  }
}

TEST_F(Device, AnInstallationWithoutTheLibraryIsNoWarning) {
  set("FREETOKEN_CUDA_LIB", "");
  const CudaReport report = probe_cuda();
  EXPECT_EQ(report.problem, CudaProblem::kMissing);
  EXPECT_FALSE(report.asked_for);
  EXPECT_NE(report.message.find("FREETOKEN_CUDA=1 pip install ."), std::string::npos) << report.message;
  EXPECT_EQ(load(DeviceMode::kAuto), "cpu");
  EXPECT_EQ(log, "");
  EXPECT_EQ(load(DeviceMode::kCuda), report.message);
}

TEST_F(Device, WhatTheGpuRefusesTheCpuServes) {
  set("FAKE_DEVICE_OPENS", "refused");
  EXPECT_EQ(load(DeviceMode::kAuto), "cpu");
  EXPECT_EQ(log, "freetoken warning: computing on the CPU: the fake opens nothing\n");
  EXPECT_EQ(load(DeviceMode::kCuda), "the fake opens nothing");
  set("FAKE_DEVICE_OPENS", "no_kv");
  EXPECT_EQ(load(DeviceMode::kAuto), "cpu");
  EXPECT_NE(log.find("the GPU cannot serve this model: no memory is left on the device"), std::string::npos) << log;
}

// The fake has 23 GiB free.
TEST_F(Device, ThePlanIsOfTheMemoryThatComputes) {
  LoadOptions options = files.options;
  MemoryPlan plan;
  for (const DeviceMode mode : {DeviceMode::kAuto, DeviceMode::kCuda}) {
    options.device = mode;
    ASSERT_TRUE(plan_memory(options, &plan).ok());
    EXPECT_EQ(plan.device_available_bytes, int64_t(23) << 30);
    EXPECT_GT(plan.device_total_bytes, 0);
  }
  options.device_memory_limit_bytes = int64_t(2) << 30;
  ASSERT_TRUE(plan_memory(options, &plan).ok());
  EXPECT_EQ(plan.device_available_bytes, int64_t(2) << 30);
  options.device = DeviceMode::kCpu;
  ASSERT_TRUE(plan_memory(options, &plan).ok());
  EXPECT_EQ(plan.device_available_bytes, 0);
  EXPECT_EQ(plan.device_total_bytes, 0);
}

TEST_F(Device, AGpuThatIsTooSmallLeavesTheCpu) {
  files.options.device_memory_limit_bytes = 1 << 20;
  MemoryPlan plan;
  LoadOptions options = files.options;
  options.device = DeviceMode::kAuto;
  ASSERT_TRUE(plan_memory(options, &plan).ok());
  EXPECT_EQ(plan.device_available_bytes, 0);
  EXPECT_EQ(load(DeviceMode::kAuto), "cpu");
  EXPECT_NE(log.find("the GPU cannot serve this model: serving needs "), std::string::npos) << log;
  EXPECT_NE(log.find(" of the GPU's memory and 1.0 MiB is available"), std::string::npos) << log;
  options.device = DeviceMode::kCuda;
  EXPECT_EQ(plan_memory(options, &plan).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(plan.device_available_bytes, 1 << 20);
}

TEST_F(Device, WhatTheGpuSaysArrives) {
  const CudaReport report = probe_cuda("", 1);
  EXPECT_EQ(report.problem, CudaProblem::kNone);
  EXPECT_EQ(report.message, "");
  EXPECT_EQ(report.library, FT_FAKE_LIBRARY);
  EXPECT_EQ(report.name, "Fake 1");
  EXPECT_EQ(report.code, "sm_80 compute_80");
  EXPECT_EQ(report.devices, 2);
  EXPECT_EQ(report.compute_capability, 89);
  EXPECT_EQ(report.driver_version, 13010);
  EXPECT_EQ(report.total_bytes, int64_t(24) << 30);
  EXPECT_EQ(report.free_bytes, int64_t(23) << 30);
}

}  // namespace
}  // namespace freetoken
