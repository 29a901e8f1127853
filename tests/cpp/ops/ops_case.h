// A device under test: buffers with values, steps, and what they leave. Uses nothing but the contract, so it works on every
// device: values reach a buffer through embed(), and leave it through read().
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "model/tiny_spec.h"
#include "ops/plain.h"
#include "ops/test_device.h"

namespace freetoken::testing {

inline ModelSpec spec_with(int hidden, SublayerSpec s, int vocab = 64) {
  ModelSpec spec;
  spec.hidden = hidden, spec.vocab = vocab, spec.max_positions = 512;
  spec.layers = {{{std::move(s)}}};
  return spec;
}

class OpsCase {
 public:
  OpsCase(const DeviceChoice& device, const ModelSpec& spec, int max_rows, bool partial_moe = false)
      : ops(make_device(device, std::vector<uint8_t>(size_t(spec.vocab), 1), false)), queue(ops->make_queue()), max_rows_(max_rows) {
    const Status status = ops->reserve(
        {.max_rows = max_rows, .max_sequences = max_rows, .sampler_slots = 8, .partial_moe = partial_moe}, spec);
    EXPECT_TRUE(status.ok()) << status.message();
  }

  // One step of rows with these tokens (one sequence), whose operations `body` enqueues.
  template <class F>
  Status step(const std::vector<int32_t>& tokens, F&& body) {
    std::vector<BatchRow> rows;
    for (const int32_t token : tokens) rows.push_back({0, int32_t(rows.size()), token, false});
    const BatchSequence sequence{0, int32_t(rows.size()), nullptr};
    ops->begin_step(*queue, {rows, {&sequence, 1}});
    body(*queue);
    return ops->wait(*queue, ops->end_step(*queue));
  }
  template <class F>
  Status step(int rows, F&& body) {
    return step(std::vector<int32_t>(size_t(rows), 0), body);
  }
  // A step that must succeed.
  template <class F>
  void run(int rows, F&& body) {
    const Status status = step(rows, body);
    EXPECT_TRUE(status.ok()) << status.message();
  }

  Tensor tensor(int rows, int cols) {
    auto t = ops->allocate(DType::kF32, rows, cols);
    EXPECT_TRUE(t.ok()) << t.status().message();
    return *t;
  }
  // A buffer with these rows.
  Tensor upload(const std::vector<Values>& rows) {
    const int cols = int(rows[0].size());
    TestWeight table{WeightFormat::kF32, int(rows.size()), cols, {}, {}, {}};
    table.source.resize(rows.size() * size_t(cols) * 4);
    for (size_t r = 0; r < rows.size(); r++)
      std::memcpy(table.source.data() + r * size_t(cols) * 4, rows[r].data(), size_t(cols) * 4);
    const std::string name = "uploaded." + std::to_string(uploads_++);
    TinyWeights weights;
    weights.add(name, std::move(table));
    weights.fill(*ops);
    const Tensor t = tensor(int(rows.size()), cols);
    std::vector<int32_t> tokens(rows.size());
    std::iota(tokens.begin(), tokens.end(), 0);
    const Status status = step(tokens, [&](Queue& q) { ops->embed(q, ops->weight(name), 1.0f, t); });
    EXPECT_TRUE(status.ok()) << status.message();
    return t;
  }
  std::vector<Values> download(Tensor t) {
    Values flat(size_t(t.rows) * size_t(t.cols));
    run(1, [&](Queue& q) { ops->read(q, t, flat); });
    std::vector<Values> rows;
    for (int r = 0; r < t.rows; r++) rows.emplace_back(flat.begin() + long(r) * t.cols, flat.begin() + long(r + 1) * t.cols);
    return rows;
  }
  // A weight vector with these values.
  Tensor vector(const Values& values) {
    TestWeight v{WeightFormat::kF32, int(values.size()), 0, std::vector<uint8_t>(values.size() * 4), values, {}};
    std::memcpy(v.source.data(), values.data(), v.source.size());
    const std::string name = "uploaded." + std::to_string(uploads_++);
    TinyWeights weights;
    weights.add(name, std::move(v));
    weights.fill(*ops);
    return ops->vector(name);
  }

  std::unique_ptr<Ops> ops;
  std::unique_ptr<Queue> queue;

 private:
  int max_rows_, uploads_ = 0;
};

inline std::vector<Values> random_rows(int rows, int cols, std::mt19937& rng, float deviation = 1.0f) {
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<Values> all(static_cast<size_t>(rows), Values(static_cast<size_t>(cols)));
  for (Values& row : all)
    for (float& v : row) v = normal(rng);
  return all;
}

}  // namespace freetoken::testing
