// A whole tiny qwen3_moe on CudaOps against CpuOps: greedy tokens, log-probabilities of the prompt, batches, chunks, prefix
// hits, preemption, cancellation; and CudaOps against itself where the bits must be the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <thread>

#include "core/worse.h"
#include "model/model_runner.h"
#include "model_case.h"

namespace freetoken {
namespace {

using namespace freetoken::testing;

// Of a logit or a log-probability. Rounding to bf16 moves an input by up to 2^-9 of itself; through two layers of sums of random
// sign about 1e-2 of logits of a few units was seen. A wrong kernel is off by whole units.
constexpr double kLogitError = 2e-2;

double margin_of(const float* row, int vocab) {
  std::vector<float> sorted(row, row + vocab);
  std::partial_sort(sorted.begin(), sorted.begin() + 2, sorted.end(), std::greater<>());
  return double(sorted[0]) - double(sorted[1]);
}

// Counts what was compared, so that a comparison of nothing fails.
struct MarginRule {
  int compared = 0, total = 0;
  double error = 0;  // of a logit, the largest that was seen

  void check(const Outcome& ours, const Outcome& oracle, int vocab, double allowed) {
    ASSERT_EQ(ours.tokens.size(), oracle.tokens.size());
    ASSERT_EQ(ours.logits.size(), oracle.logits.size());
    total += int(oracle.tokens.size());
    for (size_t i = 0; i < oracle.tokens.size(); i++) {
      const float *a = ours.logits.data() + i * size_t(vocab), *b = oracle.logits.data() + i * size_t(vocab);
      for (int v = 0; v < vocab; v++) error = worse(error, a[v], b[v]);
      ASSERT_LE(error, allowed) << "token " << i;
      const bool decided = margin_of(b, vocab) >= 2 * error;
      compared += decided;
      if (ours.tokens[i] == oracle.tokens[i]) continue;
      ASSERT_FALSE(decided) << "token " << i << " is " << ours.tokens[i] << ", not " << oracle.tokens[i];
      return;  // it may fall either way, and all that follows with it
    }
  }
};

TEST_P(CudaModel, GreedyTokensAndPromptLogprobsAreTheCpus) {
  std::vector<Request> requests;
  for (auto& p : prompts({1, 5, 37, 70})) requests.push_back(greedy_with_logits(std::move(p)));
  TinyEngine cpu(spec, cpu_weights, {.device = DeviceKind::kCpu}), gpu(spec, weights, {});
  const std::vector<Outcome> expected = run_all(cpu, requests), got = run_all(gpu, requests);
  MarginRule rule;
  double logprob_error = 0;
  for (size_t i = 0; i < requests.size(); i++) {
    rule.check(got[i], expected[i], spec.vocab, kLogitError);
    ASSERT_EQ(got[i].prompt_logprobs.size(), expected[i].prompt_logprobs.size());
    for (size_t p = 1; p < got[i].prompt_logprobs.size(); p++)
      logprob_error = worse(logprob_error, got[i].prompt_logprobs[p].logprob, expected[i].prompt_logprobs[p].logprob);
  }
  RecordProperty("logit_error", std::to_string(rule.error));
  std::printf("logit error %.2e, prompt logprob error %.2e, %d of %d tokens compared\n", rule.error, logprob_error, rule.compared, rule.total);
  EXPECT_LE(logprob_error, kLogitError);
  EXPECT_GE(rule.compared, int(0.6 * rule.total)) << "too few margins above twice the error of " << rule.error;
}

// Rows of several sequences at once, and of one alone: the same bits. In chunks too, whatever the kernels' shapes.
TEST_P(CudaModel, BitsDependOnNeitherBatchNorChunks) {
  std::mt19937 rng(21);
  ModelRunner gpu(spec, weights, {.device = DeviceKind::kOther, .kv_dtype = DType::kBF16, .max_rows = 96, .pages = 64});
  ASSERT_TRUE(gpu.status.ok()) << gpu.status.message();
  const std::vector<int32_t> pages = {3, 17}, others[] = {{5, 6}, {40, 2}, {9, 8}, {30, 31}};
  const std::vector<int32_t> tokens = random_tokens(70, spec.vocab, rng);
  const auto whole = gpu.prompt(pages, tokens, 70);
  for (const int chunk : {1, 3, 4, 9, 16, 17, 33, 64, 69}) {
    const auto got = gpu.prompt(pages, tokens, chunk);
    for (size_t r = 0; r < tokens.size(); r++) ASSERT_TRUE(same_bits(got[r], whole[r])) << "chunks of " << chunk << ", row " << r;
  }
  // A ragged batch: decodes between prompts.
  std::vector<std::vector<float>> alone;
  std::vector<ModelRunner::Chunk> batch;
  for (const auto& [list, length] : {std::pair(&others[0], 1), std::pair(&others[1], 13), std::pair(&others[2], 1),
                                     std::pair(&others[3], 40)}) {
    const std::vector<int32_t> before = random_tokens(20, spec.vocab, rng), now = random_tokens(length, spec.vocab, rng);
    gpu.prompt(*list, before, 20);
    for (auto& row : gpu.step({{list, 20, now}})) alone.push_back(std::move(row));
    batch.push_back({list, 20, now});
  }
  const auto together = gpu.step(batch);
  ASSERT_EQ(together.size(), alone.size());
  for (size_t r = 0; r < alone.size(); r++) EXPECT_TRUE(same_bits(together[r], alone[r])) << "row " << r;
}

// A prompt whose layers are spread over steps, other steps between them.
TEST_P(CudaModel, ALayerMayBeDoneInParts) {
  std::mt19937 rng(22);
  ModelRunner gpu(spec, weights, {.device = DeviceKind::kOther, .kv_dtype = DType::kBF16, .max_rows = 64, .pages = 16});
  ASSERT_TRUE(gpu.status.ok()) << gpu.status.message();
  const std::vector<int32_t> pages = {1}, other = {2};
  const std::vector<int32_t> tokens = random_tokens(33, spec.vocab, rng), chat = random_tokens(40, spec.vocab, rng);
  const auto whole = gpu.step({{&pages, 0, tokens}});
  gpu.prompt(other, {chat.begin(), chat.begin() + 10}, 10);
  int at = 10;
  std::vector<int> cuts;
  for (int u = 1; u < gpu.model().units(); u++) cuts.push_back(u);
  const auto sliced = gpu.sliced({{&pages, 0, tokens}}, cuts, [&] { gpu.step({{&other, at, {chat[size_t(at)]}}}), at++; });
  for (size_t r = 0; r < whole.size(); r++) EXPECT_TRUE(same_bits(sliced[r], whole[r])) << "row " << r;
}

// Captured steps against steps that run call by call, through an engine: tokens and logits.
TEST_P(CudaModel, AReplayedStepIsAnEagerOne) {
  std::vector<Request> requests;
  for (auto& p : prompts({3, 40, 18, 7})) requests.push_back(make_request(std::move(p), kTokens, 0.8f));
  for (size_t i = 0; i < requests.size(); i++) requests[i].sampling.seed = 100 + i;
  std::vector<Outcome> expected;
  for (const bool graphs : {false, true}) {
    cuda::CudaOps* ops = nullptr;
    EngineSetup setup;
    setup.wrap = [&](std::unique_ptr<Ops> made) {
      ops = static_cast<cuda::CudaOps*>(made.get());
      ops->use_graphs(graphs);
      return made;
    };
    TinyEngine gpu(spec, weights, setup);
    std::vector<Outcome> got = run_all(gpu, {requests[0]});
    for (const std::vector<Request>& wave : {std::vector{requests[0], requests[1]}, requests})
      for (Outcome& o : run_all(gpu, wave)) got.push_back(std::move(o));
    gpu.engine->shutdown();
    const cuda::CudaStats stats = ops->stats();
    EXPECT_EQ(stats.captures > 0, graphs);
    if (graphs) {
      EXPECT_GT(stats.replays, stats.steps / 3) << stats.captures << " captures, " << stats.eager << " eager";
    }
    if (!graphs) expected = std::move(got);
    else
      for (size_t i = 0; i < got.size(); i++) expect_same(got[i], expected[i], "replayed");
  }
}

TEST_P(CudaModel, PrefixHitsChangeNoBit) {
  TinyEngine gpu(spec, weights, {});
  const auto texts = prompts({150});
  const Request request = greedy_with_logits(texts[0], 12);
  const Outcome first = run_all(gpu, {request})[0];
  Request again = request;
  again.prompt_logprobs = false;
  const Outcome second = run_all(gpu, {again})[0];
  EXPECT_GT(second.cached_tokens, 0);
  expect_same(second, first, "after a prefix hit");
  // Another one that leaves it in the middle of a page: the page is copied.
  Request branch = again;
  branch.prompt[140] = (branch.prompt[140] + 1) % spec.vocab;
  TinyEngine fresh(spec, weights, {});
  const Outcome expected = run_all(fresh, {branch})[0], got = run_all(gpu, {branch})[0];
  EXPECT_GT(got.cached_tokens, 128);
  expect_same(got, expected, "after a partial prefix hit");
}

TEST_P(CudaModel, PreemptionAndCancellationChangeNoBit) {
  std::vector<Request> requests;
  for (auto& p : prompts({70, 40, 80, 50})) {
    requests.push_back(make_request(std::move(p), kTokens));
    requests.back().logits = LogitsMode::kSampled;
  }
  std::vector<Outcome> expected;
  {
    TinyEngine alone(spec, weights, {.prefix_cache = false});
    for (const Request& r : requests) expected.push_back(run_all(alone, {r})[0]);
  }
  TinyEngine tight(spec, weights, {.pages = 4});
  std::vector<Outcome> got = run_all(tight, requests);
  EXPECT_GT(tight.engine->stats().preemptions, 0);
  for (size_t i = 0; i < got.size(); i++) expect_same(got[i], expected[i], "preempted");

  TinyEngine busy(spec, weights, {});
  std::vector<RequestId> ids;
  for (const Request& r : requests) ids.push_back(busy.submit(r));
  while (busy.sink->now(ids[1]).tokens.size() < 5) std::this_thread::yield();
  busy.engine->cancel(ids[1]);
  busy.engine->cancel(ids[2]);
  for (const size_t i : {0, 3}) expect_same(busy.sink->wait(ids[i]), expected[i], "beside cancelled ones");
  for (const size_t i : {1, 2}) EXPECT_NE(busy.sink->wait(ids[i]).finish, FinishReason::kNone);
  busy.engine->shutdown();
}

// A quarter of all experts in slots of device memory, and fewer, the others in pinned memory: the bits of all of them
// resident.
TEST_P(CudaModel, ExpertSlotsChangeNoBit) {
  std::vector<Request> requests;
  for (auto& p : prompts({45, 3, 17})) requests.push_back(greedy_with_logits(std::move(p), 16));
  std::vector<Outcome> expected;
  for (const int slots : {0, 4, 2, 1}) {
    cuda::CudaOps* ops = nullptr;
    EngineSetup setup;
    setup.drafts = false;
    setup.wrap = [&](std::unique_ptr<Ops>) {
      auto made = make_cuda(std::vector<uint8_t>(size_t(spec.vocab), 1), slots);
      ops = made.get();
      weights.fill(*made);
      return made;
    };
    TinyEngine gpu(spec, weights, setup);
    std::vector<Outcome> got = run_all(gpu, requests);
    if (slots == 0) {
      expected = std::move(got);
      continue;
    }
    for (size_t i = 0; i < got.size(); i++) expect_same(got[i], expected[i], "with expert slots");
    // Steps whose logits are read are not captured.
    for (size_t i = 0; i < requests.size(); i++) {
      Request captured = requests[i];
      captured.logits = LogitsMode::kNone;
      EXPECT_EQ(run_all(gpu, {captured})[0].tokens, expected[i].tokens);
    }
    gpu.engine->shutdown();
    EXPECT_GT(ops->stats().replays, 0);
    const auto counters = ops->expert_slots().counters();
    ASSERT_TRUE(counters.ok()) << counters.status().message();
    EXPECT_GT(counters->misses, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, CudaModel, ::testing::ValuesIn(kCases), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace freetoken
