// CostModel against costs that follow its own form, learnt from noisy steps.
#include "core/worse.h"
#include "sched/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace freetoken {
namespace {

TEST(CostModel, KnowsNothingAtFirst) {
  CostModel costs;
  EXPECT_EQ(costs.decode_us(8), 0);
  EXPECT_FALSE(costs.knows_prefill());
  EXPECT_FALSE(costs.knows_slices());
}

TEST(CostModel, InterpolatesDecodesAndIsCarefulBeyondWhatItSaw) {
  CostModel costs;
  for (int i = 0; i < 20; i++) {
    costs.observe({.decode_rows = 1}, 1000);
    costs.observe({.decode_rows = 16}, 4000);
  }
  EXPECT_NEAR(costs.decode_us(1), 1000, 1);
  EXPECT_NEAR(costs.decode_us(16), 4000, 1);
  EXPECT_NEAR(costs.decode_us(8), 1000 + 3000 * 7 / 15.0, 1);
  EXPECT_NEAR(costs.decode_us(32), 8000, 1) << "at most in proportion";
}

// A prompt of growing context: the step ahead is predicted, not the average of those before.
TEST(CostModel, FollowsTheContextOfAPrompt) {
  std::mt19937 rng(1);
  std::normal_distribution<double> noise(1.0, 0.03);
  CostModel costs;
  for (int i = 0; i < 10; i++) costs.observe({.decode_rows = 16}, 20'000);
  auto truth = [](int first, int tokens) { return 800.0 * tokens + 0.6 * double(position_sum(first, tokens)); };
  double worst = 0;
  for (int first = 0, step = 0; first < 4000; step++) {
    const int tokens = step == 0 ? 64 : std::min(costs.prefill_tokens_within(300'000, first), 4000 - first);
    ASSERT_GT(tokens, 0);
    const double us = truth(first, tokens);
    if (step > 3) worst = testing::worse(worst, costs.prefill_us(first, tokens) / us, 1);
    costs.observe({.decode_rows = 16, .prefill_tokens = tokens, .prefill_positions = position_sum(first, tokens)},
                  20'000 + us * noise(rng));
    first += tokens;
  }
  EXPECT_LT(worst, 0.15);
}

TEST(CostModel, TokensWithinIsTheInverse) {
  CostModel costs;
  for (int first : {0, 500, 3000, 100})
    costs.observe({.prefill_tokens = 100, .prefill_positions = position_sum(first, 100)}, 100.0 * 50 + 0.1 * double(position_sum(first, 100)));
  for (int first : {0, 1000, 5000})
    for (double us : {1e3, 1e5, 1e6}) {
      const int tokens = costs.prefill_tokens_within(us, first);
      EXPECT_LE(costs.prefill_us(first, tokens), us * 1.001);
      EXPECT_GE(costs.prefill_us(first, tokens + 1), us * 0.999);
    }
  EXPECT_EQ(costs.prefill_tokens_within(-5, 0), 0);
}

TEST(CostModel, SlicesAreByTokenAndUnit) {
  CostModel costs;
  for (int i = 0; i < 10; i++) costs.observe({.decode_rows = 2}, 5000);
  for (int i = 0; i < 10; i++) costs.observe({.decode_rows = 2, .slice_tokens = 100, .slice_units = 4}, 5000 + 100 * 4 * 30);
  EXPECT_NEAR(costs.slice_unit_us(200), 6000, 60);
}

}  // namespace
}  // namespace freetoken
