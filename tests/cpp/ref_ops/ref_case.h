// A tiny model on RefOps, and the violations that a test provokes.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/model_runner.h"
#include "model/tiny_spec.h"
#include "ref_ops/ref_ops.h"

namespace freetoken::testing {

inline WeightFormat quantised(const std::string& name) {
  if (name.find("router") != std::string::npos || name == "embed") return WeightFormat::kF32;
  return name.back() == 'n' ? WeightFormat::kQ4_1 : WeightFormat::kQ8_0;
}

struct RefCase : ModelRunner {
  explicit RefCase(const ModelSpec& spec = moe_spec(), int max_rows = 16)
      : ModelRunner(spec, random_weights(spec, 3, quantised),
                    {.device = DeviceKind::kRef, .float32_activations = false, .kv_dtype = DType::kBF16,
                     .max_rows = max_rows, .pages = 8}) {
    EXPECT_TRUE(status.ok()) << status.message();
  }
  ref::RefOps& ref() { return dynamic_cast<ref::RefOps&>(ops()); }
  Tensor tensor(int rows, int cols) { return *ops().allocate(DType::kF32, rows, cols); }

  // A step of the main lane as the model makes it, with something after it.
  template <class F>
  Status model_step(const std::vector<Chunk>& chunks, F&& after) {
    const int rows = begin(chunks);
    model().forward(queue(), Lane::kMain, rows, 0, model().units());
    after();
    return ops().wait(queue(), ops().end_step(queue()));
  }
  // A step of `rows` rows in page 0 with nothing of the model.
  template <class F>
  Status bare_step(int rows, F&& body) {
    begin({{&page_zero, 0, std::vector<int32_t>(size_t(rows), 1)}});
    body();
    return ops().wait(queue(), ops().end_step(queue()));
  }
  // The step failed, and its first violation says this.
  void expect_violation(const Status& status, const std::string& text) {
    EXPECT_EQ(status.code(), StatusCode::kInternal) << text;
    EXPECT_NE(status.message().find(text), std::string::npos) << "expected '" << text << "', got '" << status.message() << "'";
    EXPECT_FALSE(ref().take_violations().empty());
  }

  std::vector<int32_t> page_zero = {0};
};

}  // namespace freetoken::testing
