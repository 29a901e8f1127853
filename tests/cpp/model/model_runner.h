// Runs a Model step by step on a device, with pages handed out by the test.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "model/model.h"
#include "model/tiny_weights.h"
#include "ops/test_device.h"

namespace freetoken::testing {

struct RunnerOptions {
  DeviceKind device = DeviceKind::kCpu;
  IsaLevel isa = supported_isa_levels().back();
  int threads = 1;
  bool float32_activations = true;
  DType kv_dtype = DType::kF32;
  int max_rows = 64, pages = 64;
};

class ModelRunner {
 public:
  // Consecutive rows of one sequence. Every KV group uses the same page ids.
  struct Chunk {
    const std::vector<int32_t>* pages;  // of the sequence
    int first_position;
    std::vector<int32_t> tokens;        // < 0: see BatchRow
  };

  ModelRunner(const ModelSpec& spec, const TinyWeights& weights, const RunnerOptions& options)
      : ops_(make_device({options.device, options.isa, options.threads, options.float32_activations},
                         std::vector<uint8_t>(size_t(spec.vocab), 1))),
        queue_(ops_->make_queue()) {
    weights.fill(*ops_);
    auto model = Model::create(spec, *ops_,
                               {.max_rows = options.max_rows,
                                .max_sequences = options.max_rows,
                                .sampler_slots = 16,
                                .max_logit_rows = options.max_rows,
                                .kv_dtype = options.kv_dtype});
    status = model.status();
    if (!status.ok()) return;
    model_ = std::move(*model);
    const std::vector<int32_t> pages(model_->kv_layout().groups.size(), options.pages);
    status = ops_->allocate_kv(model_->kv_layout().groups, pages);
  }

  // Starts a step of these chunks; returns its number of rows.
  int begin(const std::vector<Chunk>& chunks) {
    std::vector<BatchRow> rows;
    std::vector<BatchSequence> sequences;
    std::vector<std::vector<const int32_t*>> lists;
    for (const Chunk& c : chunks) lists.emplace_back(model_->kv_layout().groups.size(), c.pages->data());
    for (size_t s = 0; s < chunks.size(); s++) {
      sequences.push_back({int32_t(rows.size()), int32_t(chunks[s].tokens.size()), lists[s].data()});
      for (size_t i = 0; i < chunks[s].tokens.size(); i++)
        rows.push_back({int32_t(s), chunks[s].first_position + int32_t(i), chunks[s].tokens[i], true});
    }
    ops_->begin_step(*queue_, {rows, sequences});
    return int(rows.size());
  }

  // Logits of every row, in order, from one step of the main lane.
  std::vector<std::vector<float>> step(const std::vector<Chunk>& chunks) {
    const int rows = begin(chunks);
    model_->forward(*queue_, Lane::kMain, rows, 0, model_->units());
    return finish(Lane::kMain, rows);
  }

  // The same in the resumable lane, one step for the units from each cut to the next; `between` runs between two of them.
  std::vector<std::vector<float>> sliced(const std::vector<Chunk>& chunks, std::vector<int> cuts,
                                         const std::function<void()>& between = [] {}) {
    int from = 0;
    for (const int cut : cuts) {
      const int rows = begin(chunks);
      model_->forward(*queue_, Lane::kResumable, rows, from, cut);
      EXPECT_TRUE(ops_->wait(*queue_, ops_->end_step(*queue_)).ok());
      between();
      from = cut;
    }
    const int rows = begin(chunks);
    model_->forward(*queue_, Lane::kResumable, rows, from, model_->units());
    return finish(Lane::kResumable, rows);
  }

  // A whole prompt in chunks of `chunk` rows.
  std::vector<std::vector<float>> prompt(const std::vector<int32_t>& pages, const std::vector<int32_t>& tokens,
                                         int chunk) {
    std::vector<std::vector<float>> out;
    for (size_t p = 0; p < tokens.size(); p += size_t(chunk)) {
      const auto end = tokens.begin() + long(std::min(tokens.size(), p + size_t(chunk)));
      for (auto& row : step({{&pages, int(p), {tokens.begin() + long(p), end}}})) out.push_back(std::move(row));
    }
    return out;
  }

  Status status;
  Ops& ops() { return *ops_; }
  Queue& queue() { return *queue_; }
  Model& model() { return *model_; }

 private:
  std::vector<std::vector<float>> finish(Lane lane, int rows) {
    std::vector<int32_t> picked;
    for (int r = 0; r < rows; r++) picked.push_back(r);
    const Tensor logits = model_->logits(*queue_, lane, picked);
    std::vector<float> values(size_t(rows) * size_t(logits.cols));
    ops_->read(*queue_, logits, values);
    const Status done = ops_->wait(*queue_, ops_->end_step(*queue_));
    EXPECT_TRUE(done.ok()) << done.message();
    std::vector<std::vector<float>> out;
    for (int r = 0; r < rows; r++)
      out.emplace_back(values.begin() + long(r) * logits.cols, values.begin() + long(r + 1) * logits.cols);
    return out;
  }

  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Queue> queue_;
  std::unique_ptr<Model> model_;
};

inline std::vector<int32_t> random_tokens(int count, int vocab, std::mt19937& rng) {
  std::vector<int32_t> tokens(size_t(count), 0);
  for (int32_t& t : tokens) t = int32_t(rng() % unsigned(vocab));
  return tokens;
}

}  // namespace freetoken::testing
