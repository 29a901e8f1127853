// The checks of one call of RefOps: the first thing that is wrong is a violation, and the call is then left out.
#pragma once
#include <string>

#include "ref_ops/ref_ops.h"

namespace freetoken::ref {

class RefOps::Check {
 public:
  Check(RefOps& ops, const char* call) : ops_(ops), call_(call) {}
  bool ok() const { return ok_; }

  // what: returns the message.
  template <class F>
  void that(bool condition, F&& what) {
    if (condition || !ok_) return;
    ok_ = false;
    ops_.reject(call_, what());
  }
  // A live fp32 tensor of this many rows and columns (-1 = any), all inside one buffer.
  void tensor(const char* name, const Tensor& t, int rows, int cols);
  // [1, cols], or no tensor.
  void optional_vector(const char* name, const Tensor& t, int cols);
  void weight(const char* name, const Weight& w, int n, int k);
  // `out` shares no byte with `x`.
  void apart(const Tensor& x, const Tensor& out);
  void step_rows(const RefQueue& queue, int rows);
  void slot(int slot);
  // bytes: what the host gives or takes, 0 = nothing.
  void page(int group, int32_t page, size_t bytes = 0);

 private:
  RefOps& ops_;
  const char* call_;
  bool ok_ = true;
};

}  // namespace freetoken::ref
