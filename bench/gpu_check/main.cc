// ft_cuda_bench: one JSON object a line.
//   ft_cuda_bench --probe   the GPU; exit code 2 where there is none that works
//   ft_cuda_bench           each kernel: microseconds, GB/s, TFLOP/s, and the share of the bandwidth of a copy
#include <cstdio>
#include <cstring>
#include <string>

#include "cuda/runtime/probe.h"
#include "gpu_check/cases.h"

namespace freetoken::gpu_check {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + '"';
}

int probe() {
  const DeviceInfo info = cuda::probe_device(0);
  std::printf("{\"problem\": %d, \"message\": %s, \"name\": %s, \"code\": %s, \"compute_capability\": %d, "
              "\"driver_version\": %d, \"total_bytes\": %lld, \"free_bytes\": %lld}\n",
              int(info.problem), quoted(info.message).c_str(), quoted(info.name).c_str(), quoted(info.code).c_str(),
              info.compute_capability, info.driver_version, static_cast<long long>(info.total_bytes),
              static_cast<long long>(info.free_bytes));
  return info.problem == DeviceProblem::kNone ? 0 : 2;
}

void time_all() {
  double copy_gb_s = 0;
  const Take take = [&](const TimedCase& timed) {
    const double us = time_us(timed), gb_s = double(timed.bytes) / us / 1e3;
    if (timed.name == "copy") copy_gb_s = gb_s;
    std::printf("{\"kernel\": %s, \"us\": %.2f, \"bytes\": %lld, \"gb_s\": %.1f, \"share_of_copy\": %.3f, \"tflop_s\": %.2f}\n",
                quoted(timed.name).c_str(), us, static_cast<long long>(timed.bytes), gb_s, gb_s / copy_gb_s,
                timed.flops / us / 1e6);
    std::fflush(stdout);
  };
  copy_cases(take);
  linear_cases(take);
  expert_cases(take);
  attention_cases(take);
  row_cases(take);
}

}  // namespace
}  // namespace freetoken::gpu_check

int main(int count, char** arguments) {
  const int code = freetoken::gpu_check::probe();
  if (code != 0 || (count > 1 && !std::strcmp(arguments[1], "--probe"))) return code;
  freetoken::gpu_check::time_all();
  return 0;
}
