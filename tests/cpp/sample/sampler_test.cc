// Oracle: filter_row of reference.h (double precision, full sorts). A draw is predicted from the reference's probabilities
// and Philox's u; draws where double and fp32 may differ (u or top_p within 2e-6 of a border, a few fp32 roundings of sums
// of thousands of weights) are left out and counted.
#include "sample/sampler.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "sample/philox.h"
#include "sample/reference.h"

namespace freetoken {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr double kMargin = 2e-6;

std::vector<uint8_t> all_usable(int vocab) { return std::vector<uint8_t>(size_t(vocab), 1); }

std::vector<float> random_row(std::mt19937& random, int vocab, float spread) {
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (float& x : logits) x = normal(random);
  return logits;
}

// The token the reference draws; -1 when u is too near a border.
int32_t expected_draw(const test::ReferenceRow& row, float u) {
  std::vector<std::pair<int, double>> by_id;
  for (size_t i = 0; i < row.kept.size(); i++) by_id.emplace_back(row.kept[i], row.probability[i]);
  std::sort(by_id.begin(), by_id.end());
  double sum = 0;
  for (const auto& [id, p] : by_id) {
    if (std::fabs(sum - double(u)) < kMargin && sum > 0) return -1;
    sum += p;
    if (sum > double(u)) return sum - double(u) < kMargin && id != by_id.back().first ? -1 : id;
  }
  return by_id.back().first;
}

TEST(Sampler, EveryDrawIsTheReferenceDraw) {
  std::mt19937 random(3);
  int compared = 0, left_out = 0;
  for (int round = 0; round < 2000; round++) {
    const int vocab = round % 20 == 0 ? 50000 : 1 + int(random() % 1500);
    std::vector<uint8_t> usable = all_usable(vocab);
    if (random() % 2)
      for (int i = 0; i < vocab / 4; i++) usable[random() % usable.size()] = 0;
    usable[random() % usable.size()] = 1;
    std::vector<float> logits = random_row(random, vocab, float(1 + random() % 6));
    if (random() % 3 == 0)  // many ties
      for (float& x : logits) x = std::round(x);
    SampleParams params;
    params.temperature = std::vector<float>{0.3f, 1.0f, 1.7f, 50.0f}[random() % 4];
    params.top_k = std::vector<int>{0, 1, 2, 5, 40, 400, 5000, 1 << 30}[random() % 8];
    params.top_p = std::vector<float>{1.0f, 1.0f, 0.999f, 0.95f, 0.5f, 0.05f, 1e-6f}[random() % 7];
    params.min_p = std::vector<float>{0.0f, 0.0f, 1e-4f, 0.02f, 0.1f, 0.3f, 1.0f}[random() % 7];
    params.seed = random();
    const test::ReferenceRow row =
        test::filter_row(logits, usable, params.temperature, params.top_k, params.top_p, params.min_p);
    Sampler sampler(usable);
    for (uint32_t position = 0; position < 4; position++) {
      const int32_t expected = expected_draw(row, draw_uniform(params.seed, position, 9));
      const int32_t token = sampler.sample(logits.data(), params, position, 9);
      ASSERT_TRUE(token >= 0 && token < vocab && usable[size_t(token)]);
      if (expected < 0 || row.margin < kMargin) {
        left_out++;
        continue;
      }
      compared++;
      ASSERT_EQ(token, expected) << "vocab " << vocab << " T " << params.temperature << " k " << params.top_k << " p "
                                 << params.top_p << " min_p " << params.min_p << " kept " << row.kept.size();
    }
  }
  EXPECT_LT(left_out, compared / 20);
}

TEST(Sampler, GreedyIsTheLowestIdOfTheMaximum) {
  std::mt19937 random(4);
  for (int round = 0; round < 500; round++) {
    const int vocab = 1 + int(random() % 2000);
    std::vector<uint8_t> usable = all_usable(vocab);
    std::vector<float> logits = random_row(random, vocab, 2.0f);
    for (float& x : logits) x = std::round(x);
    for (int i = 1; i < vocab; i++) usable[size_t(i)] = random() % 3 != 0;
    int32_t best = 0;
    for (int32_t i = 1; i < vocab; i++)
      if (usable[size_t(i)] && logits[size_t(i)] > logits[size_t(best)]) best = i;
    Sampler sampler(usable);
    for (uint64_t seed = 0; seed < 3; seed++) {
      EXPECT_EQ(sampler.sample(logits.data(), {.temperature = 0.0f, .seed = seed}, 1, 0), best);
      EXPECT_EQ(sampler.sample(logits.data(), {.top_p = 0.0f, .seed = seed}, 1, 0), best);
      EXPECT_EQ(sampler.sample(logits.data(), {.top_k = 1, .seed = seed}, 1, 0), best);
      EXPECT_EQ(sampler.sample(logits.data(), {.temperature = 1e-30f, .top_k = 2, .seed = seed}, 1, 0) >= 0, true);
    }
  }
}

// Chi-square with 9 degrees of freedom: 47.5 is exceeded with probability 3e-7, and the seeds are fixed.
double chi_square(const std::vector<float>& logits, const SampleParams& base, uint32_t index, bool by_seed) {
  const auto usable = all_usable(int(logits.size()));
  const test::ReferenceRow row = test::filter_row(logits, usable, base.temperature, base.top_k, base.top_p, base.min_p);
  std::vector<double> expected(logits.size(), 0.0), seen(logits.size(), 0.0);
  for (size_t i = 0; i < row.kept.size(); i++) expected[size_t(row.kept[i])] = row.probability[i];
  Sampler sampler(usable);
  constexpr int kDraws = 40000;
  for (int i = 0; i < kDraws; i++) {
    SampleParams params = base;
    if (by_seed) params.seed = uint64_t(i);
    seen[size_t(sampler.sample(logits.data(), params, by_seed ? 0 : uint32_t(i), index))] += 1;
  }
  double sum = 0;
  for (size_t i = 0; i < logits.size(); i++) {
    if (expected[i] == 0) {
      EXPECT_EQ(seen[i], 0) << "id " << i << " was filtered";
      continue;
    }
    const double mean = expected[i] * kDraws;
    sum += (seen[i] - mean) * (seen[i] - mean) / mean;
  }
  return sum;
}

TEST(Sampler, DrawsHaveTheirProbabilities) {
  const std::vector<float> logits = {0.1f, 2.0f, -1.0f, 1.5f, 0.0f, 2.0f, -2.0f, 0.7f, 1.1f, -0.4f};
  for (const bool by_seed : {false, true}) {
    EXPECT_LT(chi_square(logits, {.seed = 1}, 0, by_seed), 47.5);
    EXPECT_LT(chi_square(logits, {.temperature = 0.5f, .seed = 2}, 3, by_seed), 47.5);
    EXPECT_LT(chi_square(logits, {.top_k = 4, .seed = 3}, 0, by_seed), 47.5);
    EXPECT_LT(chi_square(logits, {.temperature = 1.5f, .top_p = 0.8f, .seed = 4}, 0, by_seed), 47.5);
    EXPECT_LT(chi_square(logits, {.top_k = 6, .top_p = 0.7f, .seed = 5}, 1, by_seed), 47.5);
    EXPECT_LT(chi_square(logits, {.temperature = 2.0f, .min_p = 0.3f, .seed = 6}, 0, by_seed), 47.5);
    EXPECT_LT(chi_square(logits, {.top_k = 8, .top_p = 0.95f, .min_p = 0.15f, .seed = 7}, 0, by_seed), 47.5);
  }
}

// The definition: p >= min_p * p_max after temperature, whatever was cut before. The weights here are exact powers of two.
TEST(Sampler, MinPKeepsItsBorder) {
  std::vector<float> logits(1000, -100.0f);
  for (int i = 0; i < 6; i++) logits[size_t(100 * i + 7)] = -float(i);
  const float half = std::exp2(-1.0f);
  Sampler sampler(all_usable(1000));
  const auto drawn = [&](SampleParams params) {
    params.temperature = float(1.0 / std::log(2.0));  // each of the six is half as likely as the one before
    std::set<int32_t> ids;
    for (params.seed = 0; params.seed < 4000; params.seed++) ids.insert(sampler.sample(logits.data(), params, 0, 0));
    return ids;
  };
  const std::set<int32_t> three = {7, 107, 207};
  for (const float just_below : {half * half * 0.9999f, half * half * 0.6f}) {
    EXPECT_EQ(drawn({.min_p = just_below}), three);
    EXPECT_EQ(drawn({.top_k = 5, .min_p = just_below}), three);
    EXPECT_EQ(drawn({.top_p = 0.95f, .min_p = just_below}), three);
  }
  EXPECT_EQ(drawn({.min_p = half * half * 1.0001f}), (std::set<int32_t>{7, 107}));
  EXPECT_EQ(drawn({.top_k = 2, .min_p = 0.01f}), (std::set<int32_t>{7, 107}));
}

TEST(Sampler, ExtremesStayFinite) {
  std::mt19937 random(6);
  const int vocab = 3000;
  std::vector<float> logits = random_row(random, vocab, 3.0f);
  logits[7] = 1e30f, logits[8] = -1e30f, logits[9] = 3e38f, logits[10] = -3e38f;
  Sampler sampler(all_usable(vocab));
  std::set<int32_t> hot;
  for (const float temperature : {0.0f, 1e-45f, 1e-38f, 1e-9f, 1.0f, 1e6f, 1e30f, 3e38f})
    for (const int top_k : {0, 1, 2, vocab - 1, vocab, vocab + 1, 1 << 30})
      for (const float top_p : {0.0f, 1e-30f, 0.5f, 0.9999999f, 1.0f})
        for (const float min_p : {0.0f, 1e-45f, 1e-38f, 1e-9f, 1.0f})
          for (uint32_t position = 0; position < 5; position++) {
            const SampleParams params = {temperature, top_k, top_p, min_p, 5};
            const int32_t token = sampler.sample(logits.data(), params, position, 0);
            ASSERT_TRUE(token >= 0 && token < vocab);
            if (temperature <= 1e-9f || top_p == 0.0f || (min_p == 1.0f && temperature < 1e30f)) {
              ASSERT_EQ(token, 9);
            }
            if (temperature == 3e38f) hot.insert(token);
          }
  EXPECT_GT(hot.size(), 4u) << "a high temperature has an effect";
}

TEST(Sampler, BrokenRows) {
  const auto usable = all_usable(600);
  Sampler sampler(usable);
  std::vector<float> logits(600, kNaN);
  EXPECT_EQ(sampler.sample(logits.data(), {}, 0, 0), -1);
  EXPECT_EQ(sampler.sample(logits.data(), {.temperature = 0}, 0, 0), -1);
  EXPECT_TRUE(std::isnan(sampler.logprobs(logits.data(), 0, 3).token_logprob));
  EXPECT_TRUE(sampler.logprobs(logits.data(), 0, 3).top.empty());
  logits.assign(600, -kInf);
  EXPECT_EQ(sampler.sample(logits.data(), {}, 0, 0), -1);
  logits[400] = -5.0f, logits[300] = kNaN;
  for (const SampleParams params : {SampleParams{}, SampleParams{.top_k = 3}, SampleParams{.top_p = 0.5f}})
    EXPECT_EQ(sampler.sample(logits.data(), params, 0, 0), 400);
  logits[500] = kInf;
  EXPECT_EQ(sampler.sample(logits.data(), {}, 0, 0), 500);
  std::vector<uint8_t> none(600, 0);
  EXPECT_EQ(Sampler(none).sample(logits.data(), {}, 0, 0), -1);
}

TEST(Sampler, LogprobsAreOfTheRawDistribution) {
  std::mt19937 random(8);
  for (const int vocab : {1, 2, 15, 16, 17, 255, 256, 257, 5000, 50000}) {
    std::vector<uint8_t> usable = all_usable(vocab);
    std::vector<float> logits = random_row(random, vocab, 3.0f);
    if (vocab > 100)
      for (int i = 0; i < 40; i++) logits[random() % size_t(vocab)] = 9.0f;  // ties at the top
    if (vocab > 10) usable[size_t(vocab) - 1] = 0;
    const int top_n = std::min(20, vocab > 10 ? vocab - 1 : vocab);
    Sampler sampler(usable);
    const test::ReferenceRow row = test::filter_row(logits, usable, 1.0, top_n, 1.0);
    const int32_t token = int32_t(random() % size_t(vocab));
    const RowLogprobs result = sampler.logprobs(logits.data(), token, top_n);
    // fp32: the subtraction and log_f32 round at |logprob| < 32, 2e-6 each; the sum's relative error is below 1e-6.
    EXPECT_NEAR(result.token_logprob, test::log_softmax(logits, token), 5e-6);
    ASSERT_EQ(int(result.top.size()), top_n);
    for (int i = 0; i < top_n; i++) {
      EXPECT_EQ(result.top[size_t(i)].first, row.kept[size_t(i)]);
      EXPECT_NEAR(result.top[size_t(i)].second, test::log_softmax(logits, row.kept[size_t(i)]), 5e-6);
    }
    EXPECT_TRUE(sampler.logprobs(logits.data(), token, 0).top.empty());
  }
}

TEST(Sampler, MoreTopLogprobsThanIds) {
  const std::vector<float> logits = {1.0f, 3.0f, 2.0f};
  const RowLogprobs result = Sampler({1, 1, 0}).logprobs(logits.data(), 2, 10);
  ASSERT_EQ(result.top.size(), 2u);
  EXPECT_EQ(result.top[0].first, 1);
  EXPECT_EQ(result.top[1].first, 0);
  EXPECT_NEAR(result.token_logprob, test::log_softmax(logits, 2), 1e-6) << "an id that is never sampled still has mass";
}

}  // namespace
}  // namespace freetoken
