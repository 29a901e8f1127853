// What requests get: against double precision, and to the same bits whatever else runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/worse.h"
#include "engine/outcomes.h"
#include "model/reference_model.h"

namespace freetoken {
namespace {

using namespace freetoken::testing;

constexpr int kVocab = 131;

// Logits of prompt and completion within fp32 rounding of double precision (the bound of model_test.cc), tokens the
// argmax of usable ids wherever the margin is above twice that.
TEST(EngineOutput, GreedyFollowsTheReferenceModel) {
  for (const ModelSpec& spec : {llama_spec(), moe_spec()}) {
    const TinyWeights weights = random_weights(spec, 31, mixed_formats);
    TinyEngine tiny(spec, weights, {.float32 = true, .kv_dtype = DType::kF32});
    std::mt19937 rng(1);
    int compared = 0, positions = 0;
    for (int length : {1, 7, 65, 130}) {
      Request request = make_request(random_prompt(length, rng), 20);
      request.logits = LogitsMode::kAll;
      const Outcome o = tiny.run(request);
      ASSERT_EQ(o.finish, FinishReason::kLength);
      ASSERT_EQ(o.tokens.size(), 20u);
      ASSERT_EQ(o.logits.size(), size_t(length + 19) * kVocab);
      std::vector<int32_t> all = request.prompt;
      all.insert(all.end(), o.tokens.begin(), o.tokens.end() - 1);
      const auto expected = ReferenceModel(spec, weights).logits(all);
      double largest = 0, worst = 0;
      for (size_t p = 0; p < all.size(); p++)
        for (int i = 0; i < kVocab; i++) {
          largest = std::max(largest, std::fabs(expected[p][size_t(i)]));
          worst = worse(worst, o.logits[p * kVocab + size_t(i)], expected[p][size_t(i)]);
        }
      EXPECT_LT(worst, 2e-5 * largest) << "prompt of " << length;
      for (size_t t = 0; t < o.tokens.size(); t++, positions++) {
        const Row& row = expected[size_t(length) - 1 + t];
        std::vector<int> order(kVocab - 3);  // the last three are never sampled
        std::iota(order.begin(), order.end(), 0);
        std::partial_sort(order.begin(), order.begin() + 2, order.end(),
                          [&](int a, int b) { return row[size_t(a)] > row[size_t(b)]; });
        if (row[size_t(order[0])] - row[size_t(order[1])] < 4e-5 * largest) continue;
        compared++;
        EXPECT_EQ(o.tokens[t], order[0]) << "token " << t << " after a prompt of " << length;
      }
    }
    EXPECT_GE(compared, positions * 6 / 10);
  }
}

TEST(EngineOutput, DoesNotDependOnWhatElseRuns) {
  for (const ModelSpec& spec : {llama_spec(), moe_spec()}) {
    const TinyWeights weights = random_weights(spec, 37, mixed_formats);
    std::mt19937 rng(2);
    const std::vector<Request> requests = assorted_requests(rng);
    std::vector<Outcome> alone;
    {
      TinyEngine tiny(spec, weights, {.max_rows = 100, .max_running = 1, .eos = {17}});
      for (const Request& r : requests) alone.push_back(tiny.run(r));
      tiny.expect_idle();
    }
    const std::vector<EngineSetup> setups = {
        {.threads = 1, .max_rows = 200, .max_running = 14, .max_logit_rows = 200},
        {.threads = 2, .max_rows = 14, .max_running = 14, .pages = 24, .max_logit_rows = 3},
        {.threads = 3, .max_rows = 33, .max_running = 3, .pages = 12}};
    for (EngineSetup setup : setups) {
      setup.eos = {17};
      TinyEngine tiny(spec, weights, setup);
      std::vector<size_t> order(requests.size());
      std::iota(order.begin(), order.end(), 0u);
      std::shuffle(order.begin(), order.end(), rng);
      std::vector<RequestId> ids(requests.size());
      for (size_t i : order) ids[i] = tiny.submit(requests[i]);
      for (size_t i = 0; i < requests.size(); i++)
        expect_same(tiny.sink->wait(ids[i]), alone[i],
                    "request " + std::to_string(i) + ", " + std::to_string(setup.threads) + " threads, " +
                        std::to_string(setup.max_rows) + " rows");
      tiny.expect_idle();
    }
  }
}

TEST(EngineOutput, SeedsDecide) {
  const ModelSpec spec = llama_spec();
  const TinyWeights weights = random_weights(spec, 41, mixed_formats);
  TinyEngine tiny(spec, weights, {});
  Request request = make_request({1, 2, 3}, 24, 1.5f);
  std::vector<std::vector<int32_t>> drawn;
  for (uint64_t seed : {5u, 5u, 6u}) {
    request.sampling.seed = seed;
    drawn.push_back(tiny.run(request).tokens);
  }
  EXPECT_EQ(drawn[0], drawn[1]);
  EXPECT_NE(drawn[0], drawn[2]);
  request.sampling.seed.reset();
  EXPECT_NE(tiny.run(request).tokens, tiny.run(request).tokens) << "absent: a fresh one per request";
}

// The draw of a token is Philox at its position in the sequence, prompt included: what the sampler (with oracles of its
// own) gives for the logits that came with it.
TEST(EngineOutput, DrawsAreThoseOfTheTokensPosition) {
  const ModelSpec spec = llama_spec();
  const TinyWeights weights = random_weights(spec, 42, mixed_formats);
  std::vector<uint8_t> usable(kVocab, 1);
  std::fill(usable.end() - 3, usable.end(), uint8_t(0));
  Sampler sampler(usable);
  TinyEngine tiny(spec, weights, {.max_rows = 16});
  std::mt19937 rng(6);
  for (int prompt : {1, 16, 70}) {
    Request request = make_request(random_prompt(prompt, rng), 15, 1.3f);
    request.sampling.seed = 99, request.sampling.top_k = 40, request.sampling.top_p = 0.95f;
    request.logits = LogitsMode::kSampled;
    const Outcome o = tiny.run(request);
    ASSERT_EQ(o.tokens.size(), 15u);
    for (int t = 0; t < 15; t++)
      EXPECT_EQ(o.tokens[size_t(t)],
                sampler.sample(o.logits.data() + t * kVocab, {.temperature = 1.3f, .top_k = 40, .top_p = 0.95f, .seed = 99}, uint32_t(prompt + t), 0));
  }
}

TEST(EngineOutput, LogitsModesCarryTheirRows) {
  const ModelSpec spec = moe_spec();
  const TinyWeights weights = random_weights(spec, 43, mixed_formats);
  std::mt19937 rng(3);
  for (int max_logit_rows : {4, 64}) {
    TinyEngine tiny(spec, weights, {.max_rows = 50, .max_logit_rows = max_logit_rows});
    for (int prompt : {1, 49, 50, 51, 120})
      for (int completion : {0, 1, 9}) {
        Request request = make_request(random_prompt(prompt, rng), completion);
        request.logits = LogitsMode::kAll;
        const Outcome all = tiny.run(request);
        EXPECT_EQ(all.logits.size(), size_t(completion ? prompt + completion - 1 : prompt) * kVocab);
        EXPECT_EQ(all.finish, FinishReason::kLength);
        EXPECT_EQ(all.completion_tokens, completion);
        if (!completion) continue;
        request.logits = LogitsMode::kSampled;
        const Outcome sampled = tiny.run(request);
        EXPECT_TRUE(same_bits(sampled.logits, {all.logits.begin() + (prompt - 1) * kVocab, all.logits.end()}));
        request.logits = LogitsMode::kNone;
        EXPECT_TRUE(tiny.run(request).logits.empty());
      }
  }
}

// Log-probabilities against a double-precision softmax of the rows that came with them.
void expect_logprob(const TokenLogprob& got, const float* row, int top) {
  double highest = -INFINITY, total = 0;
  for (int i = 0; i < kVocab; i++) highest = std::max(highest, double(row[i]));
  for (int i = 0; i < kVocab; i++) total += std::exp(row[i] - highest);
  EXPECT_NEAR(got.logprob, row[got.token] - highest - std::log(total), 1e-5);
  ASSERT_EQ(got.top.size(), size_t(top));
  std::vector<int> order(kVocab - 3);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return row[a] > row[b]; });
  for (int i = 0; i < top; i++) {
    EXPECT_EQ(got.top[size_t(i)].first, order[size_t(i)]);
    EXPECT_NEAR(got.top[size_t(i)].second, row[order[size_t(i)]] - highest - std::log(total), 1e-5);
  }
}

TEST(EngineOutput, LogprobsAreThoseOfTheLogits) {
  const ModelSpec spec = llama_spec();
  const TinyWeights weights = random_weights(spec, 47, mixed_formats);
  std::mt19937 rng(4);
  TinyEngine tiny(spec, weights, {.max_rows = 30});
  for (int prompt : {1, 2, 30, 31, 77})
    for (int completion : {0, 1, 6})
      for (int top : {-1, 0, 4}) {
        Request request = make_request(random_prompt(prompt, rng), completion, 0.8f);
        request.logits = LogitsMode::kAll;
        request.logprobs = top;
        request.prompt_logprobs = true;
        const Outcome o = tiny.run(request);
        ASSERT_EQ(o.prompt_logprobs.size(), size_t(prompt)) << "one per prompt token, completion of " << completion;
        EXPECT_TRUE(std::isnan(o.prompt_logprobs[0].logprob));
        for (int p = 0; p < prompt; p++) EXPECT_EQ(o.prompt_logprobs[size_t(p)].token, request.prompt[size_t(p)]);
        for (int p = 1; p < prompt; p++)
          expect_logprob(o.prompt_logprobs[size_t(p)], o.logits.data() + (p - 1) * kVocab, std::max(top, 0));
        ASSERT_EQ(o.logprobs.size(), top < 0 ? 0u : size_t(completion));
        for (size_t t = 0; t < o.logprobs.size(); t++) {
          EXPECT_EQ(o.logprobs[t].token, o.tokens[t]);
          expect_logprob(o.logprobs[t], o.logits.data() + (size_t(prompt) - 1 + t) * kVocab, top);
        }
      }
}

// A request whose logits are not numbers ends with an error; its neighbours, and who gets its pages next, do not
// notice.
TEST(EngineOutput, NotANumberStaysWithItsRequest) {
  const ModelSpec spec = moe_spec();
  TinyWeights weights = random_weights(spec, 53, mixed_formats);
  TestWeight embed = weights.at("embed");
  const float nan = std::nanf("");
  for (int i = 0; i < spec.hidden; i++)
    std::memcpy(embed.source.data() + (size_t(9) * size_t(spec.hidden) + size_t(i)) * 4, &nan, 4);
  weights.add("embed", embed);
  std::mt19937 rng(5);
  std::vector<int32_t> healthy = random_prompt(70, rng);
  std::replace(healthy.begin(), healthy.end(), 9, 10);
  const Request good = make_request(healthy, 12);
  TinyEngine reference(spec, weights, {});
  const Outcome expected = reference.run(good);
  ASSERT_EQ(expected.finish, FinishReason::kLength);
  for (int threads : {1, 3}) {
    TinyEngine tiny(spec, weights, {.threads = threads, .pages = 6});
    for (int round = 0; round < 3; round++) {
      std::vector<int32_t> poisoned = healthy;
      poisoned[size_t(20 * round)] = 9;
      const RequestId a = tiny.submit(make_request(poisoned, 12)), b = tiny.submit(good), c = tiny.submit(good),
                      d = tiny.submit(good);
      const Outcome bad = tiny.sink->wait(a);
      EXPECT_EQ(bad.finish, FinishReason::kError);
      EXPECT_EQ(bad.error.code(), StatusCode::kInternal);
      EXPECT_TRUE(bad.tokens.empty());
      for (RequestId id : {b, c, d}) expect_same(tiny.sink->wait(id), expected, "round " + std::to_string(round));
    }
    tiny.expect_idle();
  }
}

}  // namespace
}  // namespace freetoken
