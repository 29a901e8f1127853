// The devices that tests run on: CpuOps and RefOps, and the choice of one by FREETOKEN_TEST_DEVICE=cpu|ref. A program that
// links another device (tests/cuda/ops) runs the same cases on that one alone.
#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/cpu_ops.h"
#include "ref_ops/ref_ops.h"

namespace freetoken::testing {

enum class DeviceKind { kCpu, kRef, kOther };

// Another device, in place of all others. usable: as below.
using OtherDevice = std::unique_ptr<Ops> (*)(std::vector<uint8_t> usable);
inline OtherDevice other_device = nullptr;

// What FREETOKEN_TEST_DEVICE says; the CPU where it says nothing.
inline DeviceKind device_from_environment() {
  if (other_device) return DeviceKind::kOther;
  const char* name = std::getenv("FREETOKEN_TEST_DEVICE");
  if (!name || !*name || name == std::string("cpu")) return DeviceKind::kCpu;
  if (name == std::string("ref")) return DeviceKind::kRef;
  throw std::invalid_argument(std::string("FREETOKEN_TEST_DEVICE=") + name + ": known are cpu and ref");
}

struct DeviceChoice {
  DeviceKind kind = DeviceKind::kCpu;
  IsaLevel isa = supported_isa_levels().back();  // FREETOKEN_REF_ISA, where set, replaces RefOps'
  int threads = 1;
  bool float32 = false;
};
// As part of a test's name: a level is a part of its own (tests/README.md).
inline std::string device_name(const DeviceChoice& d) {
  if (d.kind == DeviceKind::kOther) return "other";
  return d.kind == DeviceKind::kRef ? "ref" : std::string("cpu_") + isa_name(d.isa);
}
inline std::ostream& operator<<(std::ostream& out, const DeviceChoice& d) {
  return out << device_name(d) << ", " << d.threads << " threads, " << (d.float32 ? "fp32" : "narrow") << " activations";
}

// usable: per id of the output matrix, may it be sampled. fixed_addresses: equal calls come with equal buffers, as a model's do.
inline std::unique_ptr<Ops> make_device(const DeviceChoice& d, std::vector<uint8_t> usable, bool fixed_addresses = true) {
  if (d.kind == DeviceKind::kOther) return other_device(std::move(usable));
  if (d.kind == DeviceKind::kCpu)
    return std::make_unique<CpuOps>(CpuOptions{d.threads, d.isa, d.float32, std::move(usable)});
  ref::RefOptions options = ref::options_from_environment(d.isa);
  options.float32_activations = d.float32;
  options.usable_tokens = std::move(usable);
  options.fixed_addresses = fixed_addresses;
  return std::make_unique<ref::RefOps>(std::move(options));
}

// Sanitizers slow the plain loops 30-fold: fewer levels and settings there.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// CpuOps on every level this CPU has, and RefOps.
inline std::vector<DeviceChoice> all_devices() {
  if (other_device) return {{.kind = DeviceKind::kOther}};
  std::vector<DeviceChoice> all;
  for (const IsaLevel isa : supported_isa_levels())
    if (!kSanitized || isa == IsaLevel::kAvx2 || isa == supported_isa_levels().back()) all.push_back({.isa = isa});
  all.push_back({.kind = DeviceKind::kRef, .isa = IsaLevel::kScalar});
  return all;
}
// The settings in which one of them is run: both kinds of activations; on the best level, all numbers of threads.
inline std::vector<DeviceChoice> settings_of(const DeviceChoice& device) {
  if (device.kind == DeviceKind::kOther) return {device};
  const bool threaded = device.kind == DeviceKind::kCpu && device.isa == supported_isa_levels().back();
  std::vector<DeviceChoice> all;
  for (const bool float32 : {false, true})
    for (const int threads : threaded ? std::vector{1, 2, 3} : std::vector{1})
      if (!kSanitized || threads == (threaded ? 3 : 1)) all.push_back({device.kind, device.isa, threads, float32});
  return all;
}

}  // namespace freetoken::testing

#define FT_FOR_ALL_DEVICES(Suite)                                                                           \
  INSTANTIATE_TEST_SUITE_P(Devices, Suite, ::testing::ValuesIn(freetoken::testing::all_devices()),          \
                           [](const auto& info) { return freetoken::testing::device_name(info.param); })
