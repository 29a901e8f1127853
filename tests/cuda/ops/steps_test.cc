// Steps of a model that the test launches itself: several in flight, captured ones between others, shapes that differ in one
// thing. Equal work must give equal bits, however it came to run.
#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "core/worse.h"
#include "cuda/kernels/attention.h"
#include "model/model_runner.h"
#include "model_case.h"

namespace freetoken {
namespace {

using namespace freetoken::testing;

constexpr int kPages = 40, kMaxRows = 64;

class CudaSteps : public ::testing::Test {
 protected:
  // A step and what it gives back: where it is, until the end of the test.
  struct Step {
    std::vector<SampleRow> rows;
    std::vector<SampleResult> results;
    Ticket ticket;

    Values values() const {
      Values all;
      for (const SampleResult& r : results) {
        all.push_back(float(r.token)), all.push_back(r.logprob);
        for (const auto& [id, logprob] : r.top) all.push_back(float(id)), all.push_back(logprob);
      }
      return all;
    }
  };

  void SetUp() override {
    made = make_cuda(std::vector<uint8_t>(size_t(spec.vocab), 1), 4);
    ops = made.get();
    weights.fill(*ops);
    auto created = Model::create(spec, *ops, {.max_rows = kMaxRows, .max_sequences = 4, .sampler_slots = 4, .max_logit_rows = 4});
    ASSERT_TRUE(created.ok()) << created.status().message();
    model = std::move(*created);
    allocate_pages(kPages);
    queue = ops->make_queue();
    const SamplingParams greedy{.temperature = 0.0f};
    ops->open_sampler(*queue, 0, {.params = &greedy});
  }

  void allocate_pages(int count) {
    const std::vector<int32_t> counts(model->kv_layout().groups.size(), count);
    ASSERT_TRUE(ops->allocate_kv(model->kv_layout().groups, counts).ok());
  }

  // One sequence's next tokens; the last one's row is sampled, `samples` times.
  Step& launch(int position, const std::vector<int32_t>& tokens, int logprobs = 4, int samples = 1) {
    Step& step = steps.emplace_back();
    std::vector<BatchRow> rows;
    for (size_t i = 0; i < tokens.size(); i++) rows.push_back({0, position + int(i), tokens[i], i + 1 == tokens.size()});
    const int32_t* list = pages.data();
    const BatchSequence sequence{0, int32_t(rows.size()), &list};
    ops->begin_step(*queue, {rows, {&sequence, 1}});
    model->forward(*queue, Lane::kMain, int(rows.size()), 0, model->units());
    const int32_t last = int32_t(rows.size()) - 1;
    const Tensor logits = model->logits(*queue, Lane::kMain, {&last, 1});
    for (int i = 0; i < samples; i++)
      step.rows.push_back({.logits_row = 0, .slot = 0, .position = position + last + 1, .logprobs = logprobs});
    step.results.resize(size_t(samples));
    ops->sample(*queue, logits, step.rows, step.results);
    step.ticket = ops->end_step(*queue);
    return step;
  }

  Values run(int position, const std::vector<int32_t>& tokens, int logprobs = 4, int samples = 1) {
    const Step& step = launch(position, tokens, logprobs, samples);
    const Status done = ops->wait(*queue, step.ticket);
    EXPECT_TRUE(done.ok()) << done.message();
    return step.values();
  }

  // Position by position, as decode steps.
  Values decode(const std::vector<int32_t>& tokens, int logprobs = 4) {
    Values all;
    for (size_t p = 0; p < tokens.size(); p++)
      for (const float v : run(int(p), {tokens[p]}, logprobs)) all.push_back(v);
    return all;
  }

  std::mt19937 rng{23};
  ModelSpec spec = qwen3_moe_spec();
  TinyWeights weights = weights_in(spec, WeightFormat::kBF16, 6);
  std::vector<int32_t> pages = [] {
    std::vector<int32_t> ids;
    for (int i = 0; i < kPages; i++) ids.push_back((i * 7 + 3) % kPages);
    return ids;
  }();
  std::deque<Step> steps;
  std::unique_ptr<cuda::CudaOps> made;
  cuda::CudaOps* ops = nullptr;
  std::unique_ptr<Model> model;
  std::unique_ptr<Queue> queue;
};

// Each step embeds what the one before it drew, and the host waits for none of them before the last is launched.
TEST_F(CudaSteps, StepsInFlightKeepWhatIsTheirs) {
  constexpr int kSteps = 12;
  for (const bool graphs : {false, true}) {
    ops->use_graphs(graphs);
    std::vector<Values> expected;
    int32_t token = 17;
    for (int p = 0; p < kSteps; p++) {
      expected.push_back(run(p, {token}));
      token = steps.back().results[0].token;
    }
    const size_t first = steps.size();
    for (int p = 0; p < kSteps; p++) launch(p, {p == 0 ? 17 : ~0});
    const Status done = ops->wait(*queue, steps.back().ticket);
    ASSERT_TRUE(done.ok()) << done.message();
    for (size_t p = 0; p < kSteps; p++) EXPECT_TRUE(same_bits(steps[first + p].values(), expected[p])) << "step " << p;
  }
}

// Other slots, and other pages: what was captured before is not replayed.
TEST_F(CudaSteps, AnotherSizeIsCapturedAgain) {
  const std::vector<int32_t> tokens = random_tokens(12, spec.vocab, rng);
  const Values expected = decode(tokens);
  EXPECT_EQ(ops->stats().captures, 1);
  EXPECT_EQ(ops->stats().replays, 10);
  allocate_pages(300);
  EXPECT_TRUE(same_bits(decode(tokens), expected)) << "other pages";
  EXPECT_EQ(ops->stats().captures, 2);
  ASSERT_TRUE(ops->resize_expert_slots(3).ok());
  EXPECT_TRUE(same_bits(decode(tokens), expected)) << "other slots";
  EXPECT_EQ(ops->stats().captures, 3);
}

// A step with more results than any before it moves the block that graphs write theirs to.
TEST_F(CudaSteps, AStepWithMoreResultsMovesThemForGraphsToo) {
  const std::vector<int32_t> tokens = random_tokens(6, spec.vocab, rng);
  const Values expected = decode(tokens);
  EXPECT_EQ(ops->stats().captures, 1);
  const Values many = run(int(tokens.size()), {1, 2, 3}, 64, 60);
  EXPECT_TRUE(same_bits(decode(tokens), expected));
  EXPECT_EQ(ops->stats().captures, 2);
  EXPECT_TRUE(same_bits(run(int(tokens.size()), {1, 2, 3}, 64, 60), many));
}

// The same decode step with more of the most likely tokens is another shape.
TEST_F(CudaSteps, AnotherNumberOfLogprobsIsAnotherShape) {
  const std::vector<int32_t> tokens = random_tokens(6, spec.vocab, rng);
  ops->use_graphs(false);
  const Values four = decode(tokens, 4), eight = decode(tokens, 8);
  ops->use_graphs(true);
  EXPECT_TRUE(same_bits(decode(tokens, 4), four));
  EXPECT_TRUE(same_bits(decode(tokens, 8), eight));
  EXPECT_TRUE(same_bits(decode(tokens, 4), four)) << "again";
  EXPECT_EQ(ops->stats().captures, 2);
}

// More positions than attention takes in one partition, while the rows of a step stay the same.
TEST_F(CudaSteps, AContextThatOutgrowsItsGraph) {
  constexpr int kBefore = cuda::kAttentionPartition - 6, kDecodes = 14;
  const std::vector<int32_t> prompt = random_tokens(kBefore, spec.vocab, rng), tokens = random_tokens(kDecodes, spec.vocab, rng);
  for (int p = 0; p < kBefore; p += kMaxRows) run(p, {prompt.begin() + p, prompt.begin() + std::min(p + kMaxRows, kBefore)});
  std::vector<Values> expected;
  for (const bool graphs : {false, true}) {
    ops->use_graphs(graphs);
    for (int i = 0; i < kDecodes; i++) {
      const Values got = run(kBefore + i, {tokens[size_t(i)]});
      if (graphs) EXPECT_TRUE(same_bits(got, expected[size_t(i)])) << "decode " << i;
      else expected.push_back(got);
    }
  }
  EXPECT_EQ(ops->stats().captures, 2);
}

// Layers that see windows of two lengths, and whose rotations come from two tables. fp32 on the CPU is the oracle; inputs
// of matrices are rounded to bf16 here, which moves a logit of a few units by about 1e-2 (model_test.cc).
TEST(CudaModelRunner, WindowsAndTwoRopeTables) {
  std::mt19937 rng(24);
  ModelSpec spec = window_spec();
  spec.rope_tables.push_back(make_rope(16));
  for (float& f : spec.rope_tables[1].inv_freq) f *= 0.25f;
  spec.layers[1].sublayers[0].attention.rope = 1;
  const TinyWeights weights = weights_in(spec, WeightFormat::kBF16, 6);
  ModelRunner cpu(spec, weights, {.pages = kPages}),
      gpu(spec, weights, {.device = DeviceKind::kOther, .kv_dtype = DType::kBF16, .pages = kPages});
  ASSERT_TRUE(cpu.status.ok()) << cpu.status.message();
  ASSERT_TRUE(gpu.status.ok()) << gpu.status.message();
  std::vector<int32_t> pages(kPages);
  for (int i = 0; i < kPages; i++) pages[size_t(i)] = i;
  const std::vector<int32_t> tokens = random_tokens(180, spec.vocab, rng);
  const auto expected = cpu.prompt(pages, tokens, 60), got = gpu.prompt(pages, tokens, 60);
  ASSERT_EQ(got.size(), expected.size());
  double error = 0;
  for (size_t r = 0; r < got.size(); r++)
    for (size_t i = 0; i < got[r].size(); i++) error = worse(error, got[r][i], expected[r][i]);
  std::printf("logit error %.2e\n", error);
  EXPECT_LE(error, 2e-2);
}

}  // namespace
}  // namespace freetoken
