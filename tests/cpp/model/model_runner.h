// Runs a Model on CpuOps step by step, with pages handed out by the test.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "cpu/cpu_ops.h"
#include "model/model.h"
#include "model/tiny_weights.h"

namespace freetoken::testing {

struct RunnerOptions {
  IsaLevel isa = supported_isa_levels().back();
  int threads = 1;
  bool float32_activations = true;
  DType kv_dtype = DType::kF32;
  int max_rows = 64, pages = 64;
};

class ModelRunner {
 public:
  struct Chunk {
    const std::vector<int32_t>* pages;  // of the sequence
    int first_position;
    std::vector<int32_t> tokens;
  };

  ModelRunner(const ModelSpec& spec, const TinyWeights& weights, const RunnerOptions& options)
      : max_rows_(options.max_rows),
        ops_({options.threads, options.isa, options.float32_activations, std::vector<uint8_t>(size_t(spec.vocab), 1)}) {
    weights.fill(ops_);
    auto model = Model::create(spec, ops_, {options.max_rows, options.max_rows, options.max_rows, options.kv_dtype});
    status = model.status();
    if (!status.ok()) return;
    model_ = std::move(*model);
    const std::vector<int32_t> pages(model_->kv_layout().groups.size(), options.pages);
    status = ops_.allocate_kv(model_->kv_layout().groups, pages);
  }

  // Logits of every row, in order. cut: where the forward pass is interrupted between layers.
  std::vector<std::vector<float>> step(const std::vector<Chunk>& chunks, int cut = 0) {
    std::vector<BatchRow> rows;
    std::vector<BatchSequence> sequences;
    std::vector<const int32_t*> lists;
    for (const Chunk& c : chunks) lists.push_back(c.pages->data());
    std::vector<int32_t> picked;
    for (size_t s = 0; s < chunks.size(); s++) {
      sequences.push_back({int32_t(rows.size()), int32_t(chunks[s].tokens.size()), &lists[s]});
      for (size_t i = 0; i < chunks[s].tokens.size(); i++) {
        picked.push_back(int32_t(rows.size()));
        rows.push_back({int32_t(s), chunks[s].first_position + int32_t(i), chunks[s].tokens[i], true});
      }
    }
    ops_.begin_step(queue_, {rows, sequences});
    model_->forward(queue_, int(rows.size()), 0, cut);
    if (cut < model_->layers()) model_->forward(queue_, int(rows.size()), cut, model_->layers());
    const Tensor logits = model_->logits(queue_, picked);
    std::vector<float> values(rows.size() * size_t(logits.cols));
    EXPECT_TRUE(ops_.wait(queue_, ops_.read(queue_, logits, values)).ok());
    std::vector<std::vector<float>> out;
    for (size_t r = 0; r < rows.size(); r++)
      out.emplace_back(values.begin() + long(r) * logits.cols, values.begin() + long(r + 1) * logits.cols);
    return out;
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
  CpuOps& ops() { return ops_; }
  Model& model() { return *model_; }

 private:
  int max_rows_;
  CpuOps ops_;
  std::unique_ptr<Model> model_;
  Queue queue_;
};

inline std::vector<int32_t> random_tokens(int count, int vocab, std::mt19937& rng) {
  std::vector<int32_t> tokens(size_t(count), 0);
  for (int32_t& t : tokens) t = int32_t(rng() % unsigned(vocab));
  return tokens;
}

}  // namespace freetoken::testing
