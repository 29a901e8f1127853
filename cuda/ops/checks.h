// What is wrong with the arguments of a call: the first thing fails the step.
#pragma once
#include <string>

#include "cuda/ops/recorded_step.h"

namespace freetoken::cuda {

class Checks {
 public:
  Checks(RecordedStep& step, const char* call) : step_(step), call_(call) {}
  bool ok() const { return ok_; }

  void that(bool condition, const char* what) {
    if (condition || !ok_) return;
    ok_ = false;
    step_.fail(call_, what);
  }
  void that(const Status& status) {
    if (status.ok() || !ok_) return;
    ok_ = false;
    if (step_.error.ok()) step_.error = Status(status.code(), std::string(call_) + ": " + status.message());
  }
  // fp32 of this shape; -1 = any.
  void tensor(const char* name, const Tensor& t, int rows, int cols) {
    if (t.valid() && t.dtype == DType::kF32 && (rows < 0 || t.rows == rows) && (cols < 0 || t.cols == cols)) return;
    that(false, (std::string(name) + " is [" + std::to_string(t.rows) + ", " + std::to_string(t.cols) + "]" +
                 (t.valid() && t.dtype == DType::kF32 ? "" : " and no fp32 tensor") + ", not [" + std::to_string(rows) + ", " +
                 std::to_string(cols) + "]").c_str());
  }
  void optional_vector(const char* name, const Tensor& t, int cols) {
    if (t.valid()) tensor(name, t, 1, cols);
  }
  void weight(const char* name, const Weight& w, int n, int k) {
    if (w.valid() && (n < 0 || w.n == n) && (k < 0 || w.k == k)) return;
    that(false, (std::string(name) + " is [" + std::to_string(w.n) + ", " + std::to_string(w.k) + "], not [" + std::to_string(n) +
                 ", " + std::to_string(k) + "]").c_str());
  }

 private:
  RecordedStep& step_;
  const char* call_;
  bool ok_ = true;
};

// Handles as kernels take them.
inline float* floats(const Tensor& t) { return reinterpret_cast<float*>(t.address); }
inline int64_t stride(const Tensor& t) { return t.row_bytes / int64_t(sizeof(float)); }

}  // namespace freetoken::cuda
