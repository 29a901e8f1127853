// Dense matmuls: decode moves the weights, prefill multiplies.
#include <string>

#include "cuda/kernels/matmul.h"
#include "gpu_check/cases.h"
#include "gpu_check/device_memory.h"
#include "quant/t32.h"

namespace freetoken::gpu_check {
namespace {

constexpr int kHidden = 2048;
constexpr int kVocab = 151936;

struct Case {
  const char* what;
  int n, k, rows;
};

void time_linear(const Case& c, WeightFormat format, const Take& take) {
  const int64_t weight_bytes = int64_t(packed_bytes(format, c.n, c.k));
  const int copies = cold_copies(weight_bytes);
  const DeviceMemory weights(size_t(weight_bytes) * copies), x(size_t(c.rows) * c.k * 4), out(size_t(c.rows) * c.n * 4);
  TimedCase timed;
  timed.name = std::string(c.what) + " " + kFormatTraits[int(format)].name + " rows " + std::to_string(c.rows);
  timed.bytes = weight_bytes + int64_t(x.size() + out.size());
  timed.flops = c.rows > 16 ? 2.0 * c.n * c.k * c.rows : 0;
  timed.copies = copies;
  timed.launch = [&](int copy, cudaStream_t stream) {
    cuda::LinearTarget target;
    target.weight = weights.bytes() + weight_bytes * copy;
    target.format = format;
    target.n = c.n;
    target.out = out.as<float>();
    target.out_stride = c.n;
    return cuda::launch_linear({x.as<float>(), c.k}, c.rows, c.k, &target, 1, stream);
  };
  take(timed);
}

}  // namespace

void linear_cases(const Take& take) {
  for (const WeightFormat format : {WeightFormat::kBF16, WeightFormat::kQ8_0, WeightFormat::kQ4_0}) {
    for (const int rows : {1, 4, 512}) time_linear({"linear 4096x2048", 4096, kHidden, rows}, format, take);
    time_linear({"head", kVocab, kHidden, 1}, format, take);
  }
}

}  // namespace freetoken::gpu_check
