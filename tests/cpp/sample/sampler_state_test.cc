// Oracle of the adjusted logits: the formulas of sampler_state.h in double precision over plain maps.
#include "sample/sampler_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "sample/sampler.h"

namespace freetoken {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

using Tokens = std::vector<int32_t>;

struct Settings {
  SamplingParams params;
  Tokens prompt, sampled, end_tokens;
  int32_t min_tokens = 0;

  SamplerState state(int vocab) const {
    SamplerInit init;
    init.params = &params;
    init.seed = params.seed.value_or(0);
    init.prompt = prompt, init.sampled = sampled, init.end_tokens = end_tokens;
    init.min_tokens = min_tokens;
    return SamplerState(init, vocab);
  }
};

std::vector<float> adjusted(const SamplerState& state, const std::vector<float>& logits, const Tokens& ahead = {}) {
  RowScan row(std::vector<uint8_t>(logits.size(), 1));
  row.load(logits.data());
  state.adjust(logits.data(), ahead, row);
  std::vector<float> out;
  for (int block = 0; block < row.blocks(); block++)
    out.insert(out.end(), row.block_data(block), row.block_data(block) + row.block_size(block));
  return out;
}

std::vector<double> reference(const Settings& s, const std::vector<float>& logits, const Tokens& ahead) {
  std::vector<double> x(logits.begin(), logits.end());
  const int vocab = int(logits.size());
  std::set<int32_t> banned;
  for (const auto& [id, bias] : s.params.logit_bias) {
    if (id < 0 || id >= vocab) continue;
    x[size_t(id)] += bias;
    if (bias <= -100.0f) banned.insert(id);
  }
  std::map<int32_t, int> count;
  for (const int32_t id : s.sampled) count[id]++;
  for (const int32_t id : ahead) count[id]++;
  std::set<int32_t> seen(s.prompt.begin(), s.prompt.end());
  for (const auto& [id, n] : count) seen.insert(id);
  for (const int32_t id : seen)
    if (id >= 0 && id < vocab) {
      const double penalty = s.params.repetition_penalty;
      x[size_t(id)] = x[size_t(id)] < 0 ? x[size_t(id)] * penalty : x[size_t(id)] / penalty;
    }
  for (const auto& [id, n] : count)
    if (id >= 0 && id < vocab)
      x[size_t(id)] -= double(s.params.frequency_penalty) * n + double(s.params.presence_penalty);
  if (int(s.sampled.size() + ahead.size()) < s.min_tokens)
    for (const int32_t id : s.end_tokens)
      if (id >= 0 && id < vocab) banned.insert(id);
  for (const int32_t id : banned) x[size_t(id)] = -std::numeric_limits<double>::infinity();
  return x;
}

Tokens random_tokens(std::mt19937& random, int count, int range) {
  Tokens tokens;
  for (int i = 0; i < count; i++) tokens.push_back(int32_t(random() % unsigned(range)));
  return tokens;
}

TEST(SamplerState, AdjustsAsTheFormulasSay) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 5.0f);
  for (int round = 0; round < 2000; round++) {
    const int vocab = 1 + int(random() % 900), range = vocab + 3;  // some ids are none of the vocabulary
    std::vector<float> logits(static_cast<size_t>(vocab));
    for (float& x : logits) x = normal(random);
    Settings s;
    if (random() % 2) s.params.presence_penalty = normal(random) / 3;
    if (random() % 2) s.params.frequency_penalty = normal(random) / 3;
    if (random() % 2) s.params.repetition_penalty = std::exp(normal(random) / 15);
    for (unsigned i = random() % 8; i > 0; i--)
      s.params.logit_bias.emplace_back(int32_t(random() % unsigned(range)), random() % 3 ? normal(random) : -100.0f);
    s.prompt = random_tokens(random, int(random() % 40), range);
    s.sampled = random_tokens(random, int(random() % 20), 1 + range / 2);
    s.end_tokens = random_tokens(random, 2, range);
    s.min_tokens = int(random() % 40);
    const Tokens ahead = random_tokens(random, int(random() % 6), 1 + range / 3);
    const SamplerState state = s.state(vocab);
    const std::vector<float> got = adjusted(state, logits, ahead);
    const std::vector<double> expected = reference(s, logits, ahead);
    for (int id = 0; id < vocab; id++) {
      const double want = expected[size_t(id)];
      if (std::isinf(want)) {
        ASSERT_EQ(got[size_t(id)], -kInf);
      } else {
        // At most 12 fp32 roundings (8 biases of one id, 4 steps) of numbers below 1024: half a last place is 3.1e-5.
        ASSERT_NEAR(got[size_t(id)], want, 12 * 3.1e-5) << "id " << id;
      }
    }
  }
}

TEST(SamplerState, AdjustsNothingUnasked) {
  Settings s;
  s.params.temperature = 0.5f, s.params.top_p = 0.9f, s.params.min_p = 0.1f;
  s.prompt = {1, 2, 3}, s.sampled = {4, 5}, s.end_tokens = {6};
  std::vector<float> logits(700, 1.0f);
  RowScan row(std::vector<uint8_t>(700, 1));
  row.load(logits.data());
  s.state(700).adjust(logits.data(), Tokens{7, 8}, row);
  for (int block = 0; block < row.blocks(); block++)
    EXPECT_EQ(row.block_data(block), logits.data() + block * kScanBlock) << "no block is copied";
}

TEST(SamplerState, CopiesOnlyWhatItTouches) {
  Settings s;
  s.params.logit_bias = {{300, 1.0f}};
  const std::vector<float> logits(700, 1.0f);
  RowScan row(std::vector<uint8_t>(700, 1));
  row.load(logits.data());
  s.state(700).adjust(logits.data(), {}, row);
  EXPECT_EQ(row.block_data(0), logits.data());
  EXPECT_NE(row.block_data(1), logits.data() + kScanBlock);
  EXPECT_EQ(row.block_data(1)[300 - kScanBlock], 2.0f);
  EXPECT_EQ(row.block_data(2), logits.data() + 2 * kScanBlock);
  EXPECT_EQ(logits[300], 1.0f);
}

TEST(SamplerState, BiasListHasNoOrder) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0.0f, 30.0f);
  for (int round = 0; round < 200; round++) {
    Settings s;
    for (int i = 0; i < 30; i++) s.params.logit_bias.emplace_back(int32_t(random() % 10), normal(random));
    const std::vector<float> logits(10, 0.25f);
    const std::vector<float> first = adjusted(s.state(10), logits);
    std::shuffle(s.params.logit_bias.begin(), s.params.logit_bias.end(), random);
    ASSERT_EQ(adjusted(s.state(10), logits), first);
  }
}

TEST(SamplerState, BannedTokensAreNeverDrawn) {
  const int vocab = 600;
  std::vector<float> logits(vocab, 0.0f);
  logits[3] = 1e30f, logits[400] = kInf, logits[7] = 2.0f, logits[8] = 1.0f;
  for (const float temperature : {0.0f, 1e-6f, 1.0f, 1e6f, 3e38f})
    for (const int top_k : {0, 1, 3})
      for (const float top_p : {0.0f, 0.5f, 1.0f}) {
        Settings s;
        s.params.temperature = temperature, s.params.top_k = top_k, s.params.top_p = top_p, s.params.min_p = 0.01f;
        s.params.logit_bias = {{3, -100.0f}, {400, -1e30f}};
        s.end_tokens = {7}, s.min_tokens = 3;
        const SamplerState state = s.state(vocab);
        Sampler sampler(std::vector<uint8_t>(vocab, 1));
        for (uint32_t position = 0; position < 50; position++) {
          const int32_t token = sampler.sample(logits.data(), state, Tokens{1, 2}, position, 0);
          ASSERT_TRUE(token >= 0 && token != 3 && token != 400 && token != 7) << token;
          if (state.params().greedy()) {
            ASSERT_EQ(token, 8);
            ASSERT_EQ(sampler.sample(logits.data(), state, Tokens{1, 2, 5}, position, 0), 7) << "min_tokens is reached";
          }
        }
      }
}

TEST(SamplerState, EverythingBannedDrawsNothing) {
  Settings s;
  s.params.logit_bias = {{0, -100.0f}, {1, -100.0f}};
  Sampler sampler({1, 1, 0});
  const std::vector<float> logits = {1.0f, 2.0f, 3.0f};
  EXPECT_EQ(sampler.sample(logits.data(), s.state(3), {}, 0, 0), -1);
}

TEST(SamplerState, BiasDoesNotMakeAnIdUsable) {
  Settings s;
  s.params.temperature = 0.0f;
  s.params.logit_bias = {{2, 100.0f}};
  Sampler sampler({1, 1, 0});
  const std::vector<float> logits = {1.0f, 2.0f, 3.0f};
  EXPECT_EQ(sampler.sample(logits.data(), s.state(3), {}, 0, 0), 1);
}

TEST(SamplerState, ABanIsFinal) {
  Settings s;
  s.params.frequency_penalty = -2.0f, s.params.repetition_penalty = 0.5f;
  s.params.logit_bias = {{0, -100.0f}, {0, 1e30f}, {1, -100.0f}, {2, -99.0f}};
  s.sampled = {0, 1, 1, 2};
  const std::vector<float> out = adjusted(s.state(3), {3e38f, kInf, 0.0f});
  EXPECT_EQ(out[0], -kInf);
  EXPECT_EQ(out[1], -kInf);
  EXPECT_EQ(out[2], -99.0f * 0.5f + 2.0f) << "above -100 a bias is a number";
}

TEST(SamplerState, NaNStaysNaN) {
  Settings s;
  s.params.repetition_penalty = 1.5f, s.params.presence_penalty = 1.0f;
  s.params.logit_bias = {{1, 5.0f}};
  s.sampled = {0, 1, 2};
  const std::vector<float> out = adjusted(s.state(3), {kNaN, kNaN, -kInf});
  EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[1]));
  EXPECT_EQ(out[2], -kInf);
  const std::vector<float> logits = {kNaN, kNaN, -kInf};
  EXPECT_EQ(Sampler({1, 1, 1}).sample(logits.data(), s.state(3), {}, 0, 0), -1);
}

// A row of drafts is drawn as if they had been sampled, and the state does not notice.
TEST(SamplerState, AheadIsAdvanceWithoutTheChange) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  for (int round = 0; round < 500; round++) {
    const int vocab = 300 + int(random() % 300);
    std::vector<float> logits(static_cast<size_t>(vocab));
    for (float& x : logits) x = normal(random);
    Settings s;
    s.params.presence_penalty = normal(random), s.params.frequency_penalty = normal(random);
    s.params.repetition_penalty = 1.3f;
    s.prompt = random_tokens(random, 50, vocab), s.sampled = random_tokens(random, 10, 12);
    s.end_tokens = {5}, s.min_tokens = 14;
    const Tokens ahead = random_tokens(random, int(random() % 9), 12);
    const SamplerState state = s.state(vocab);
    SamplerState advanced = state;
    advanced.advance(ahead);
    Settings resumed = s;
    resumed.sampled.insert(resumed.sampled.end(), ahead.begin(), ahead.end());
    const std::vector<float> before = adjusted(state, logits), expected = adjusted(advanced, logits);
    ASSERT_EQ(adjusted(state, logits, ahead), expected);
    ASSERT_EQ(adjusted(resumed.state(vocab), logits), expected);
    ASSERT_EQ(adjusted(state, logits), before);
  }
}

TEST(SamplerState, LogprobsIgnoreIt) {
  Settings s;
  s.params.logit_bias = {{0, -100.0f}, {1, 50.0f}};
  Sampler sampler({1, 1, 1});
  const std::vector<float> logits = {3.0f, 1.0f, 0.0f};
  const RowLogprobs before = sampler.logprobs(logits.data(), 0, 3);
  EXPECT_EQ(sampler.sample(logits.data(), s.state(3), {}, 0, 0), 1);
  const RowLogprobs after = sampler.logprobs(logits.data(), 0, 3);
  EXPECT_EQ(after.token_logprob, before.token_logprob);
  EXPECT_EQ(after.top, before.top);
  EXPECT_EQ(after.top[0].first, 0);
}

}  // namespace
}  // namespace freetoken
