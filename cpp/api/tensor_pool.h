// What the functions on plain memory (freetoken/tensor_ops.h) compute with: a CpuOps of the process, sized by what was asked
// of it so far.
#pragma once
#include <xmmintrin.h>

#include <functional>
#include <memory>

#include "api/guard.h"
#include "cpu/cpu_ops.h"
#include "freetoken/tensor_ops.h"

namespace freetoken {

// Largest dimensions that are believed. Rows of a call are unlimited: they are done in blocks, which changes no bit.
constexpr int64_t kMaxTensorRows = int64_t(1) << 24;     // of a weight, and positions of a cache
constexpr int64_t kMaxTensorColumns = int64_t(1) << 20;
constexpr int64_t kMaxTensorExperts = int64_t(1) << 14;
constexpr int kRowBlock = 512;

// Puts the floating-point environment of the calling thread back: CpuOps flushes denormals on it, the caller's code may not.
class KeepFloatMode {
 public:
  KeepFloatMode() : csr_(_mm_getcsr()) {}
  ~KeepFloatMode() { _mm_setcsr(csr_); }
  KeepFloatMode(const KeepFloatMode&) = delete;
  KeepFloatMode& operator=(const KeepFloatMode&) = delete;

 private:
  unsigned csr_;
};

// What one call needs scratch memory for.
struct OpsSize {
  int k = 1;          // inputs of a matrix
  int inner = 1, experts = 1, per_token = 1;
};

// Rows per block of the largest call so far; small where rows are long, so that scratch memory stays near 32 MiB.
int row_block(const OpsSize& size);

// body(ops, queue, rows per block) on the shared CpuOps, alone; the previous one is replaced when it is too small.
using OpsBody = std::function<Status(CpuOps&, Queue&, int)>;
Status with_shared_ops(MatmulInput input, const OpsSize& size, const OpsBody& body);

// A CpuOps of its own with the process's number of threads, not reserved.
Result<std::unique_ptr<CpuOps>> make_tensor_ops(MatmulInput input);

// Opens a step of `rows` rows of one sequence without a cache.
void begin_plain_step(CpuOps& ops, Queue& queue, int rows);

// The format of that name, sizes checked: 1 <= n, k within the limits, k a multiple of the format's block.
Result<WeightFormat> checked_format(const WeightSource& weight, const std::string& what);

// A dense fp32 matrix in the caller's memory as a tensor of the CPU.
inline Tensor host_tensor(const float* data, int rows, int cols) {
  return {reinterpret_cast<uint64_t>(data), DType::kF32, rows, cols, int64_t(cols) * 4};
}

}  // namespace freetoken
