#include "sample/draft_gain.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace freetoken {
namespace {

std::vector<double> linear_cost(double per_row) {
  std::vector<double> cost;
  for (int k = 1; k <= DraftGain::kMaxDraft; k++) cost.push_back(1 + per_row * k);
  return cost;
}

// Expected tokens of a step with k drafts whose places are each accepted with probability p: a geometric sum.
double expected_tokens(double p, int k) { return p == 1 ? k + 1 : (1 - std::pow(p, k + 1)) / (1 - p); }

int best_length(double p, const std::vector<double>& cost) {
  int best = 1;
  for (int k = 1; k <= int(cost.size()); k++)
    if (expected_tokens(p, k) / cost[size_t(k - 1)] > expected_tokens(p, best) / cost[size_t(best - 1)]) best = k;
  return best;
}

TEST(DraftGain, AcceptanceIsTheExponentialAverage) {
  DraftGain gain;
  EXPECT_EQ(gain.acceptance(0), 0.5);
  gain.record(3, 1);  // accepted, rejected, not looked at
  EXPECT_DOUBLE_EQ(gain.acceptance(0), (2 * 0.5 + 1) / 3);
  EXPECT_DOUBLE_EQ(gain.acceptance(1), (2 * (2.0 / 3) + 0) / 3) << "starts from the place before";
  EXPECT_DOUBLE_EQ(gain.acceptance(2), gain.acceptance(1));
  gain.record(1, 0);
  EXPECT_DOUBLE_EQ(gain.acceptance(0), (2 * 0.5 + 0.9) / (2 + 0.9 + 1));
}

TEST(DraftGain, SettlesOnTheBestLength) {
  std::mt19937 random(1);
  for (const double p : {0.3, 0.6, 0.8, 0.95, 1.0})
    for (const double per_row : {0.01, 0.05, 0.2, 0.5}) {
      const std::vector<double> cost = linear_cost(per_row);
      if (expected_tokens(p, best_length(p, cost)) / cost[size_t(best_length(p, cost) - 1)] < 1.1) continue;
      DraftGain gain;
      double lost = 0, steps = 0;
      for (int step = 0; step < 3000; step++) {
        const int k = gain.choose(16, cost);
        int accepted = 0;
        while (accepted < k && std::uniform_real_distribution<double>(0, 1)(random) < p) accepted++;
        if (k > 0) gain.record(k, accepted);
        if (step < 100) continue;
        const int best = best_length(p, cost);
        const double optimum = expected_tokens(p, best) / cost[size_t(best - 1)];
        lost += 1 - (k == 0 ? 1 : expected_tokens(p, k) / cost[size_t(k - 1)]) / optimum;
        steps++;
      }
      // Ten observations estimate a rate to about +-0.15, which costs some steps with another length.
      EXPECT_LT(lost / steps, 0.12) << "p " << p << " cost per row " << per_row;
    }
}

TEST(DraftGain, OffWhileItDoesNotPayAndProbedMoreAndMoreSeldom) {
  const std::vector<double> cost = linear_cost(0.3);
  DraftGain gain;
  std::vector<int> probes;
  for (int step = 0; step < 5000; step++) {
    const int k = gain.choose(16, cost);
    if (k == 0) continue;
    if (!gain.paying()) probes.push_back(step);
    gain.record(k, 0);
  }
  ASSERT_GE(probes.size(), 10u);
  for (size_t i = 2; i < probes.size(); i++) {
    const int pause = probes[i] - probes[i - 1], before = probes[i - 1] - probes[i - 2];
    EXPECT_TRUE(pause - 1 == 2 * (before - 1) || pause - 1 == DraftGain::kLongestPause) << before << " then " << pause;
  }
  EXPECT_LE(probes.size(), 6 + 5000 / 512 + 1u);
}

TEST(DraftGain, ComesBackWhenDraftsAreAcceptedAgain) {
  const std::vector<double> cost = linear_cost(0.3);
  DraftGain gain;
  for (int step = 0; step < 300; step++)
    if (const int k = gain.choose(16, cost)) gain.record(k, 0);
  EXPECT_FALSE(gain.paying());
  int step = 0;
  for (; step < 1000 && !gain.paying(); step++)
    if (const int k = gain.choose(16, cost)) gain.record(k, k);
  EXPECT_LT(step, 600) << "one long pause, then probes in short ones";
  EXPECT_TRUE(gain.paying());
}

TEST(DraftGain, TheFirstDraftIsAProbeWhereItWouldNotPay) {
  DraftGain gain;
  const std::vector<double> dear = linear_cost(3.0);
  EXPECT_GE(gain.choose(16, dear), 1);
  EXPECT_FALSE(gain.paying());
  gain.record(1, 0);
  EXPECT_EQ(gain.choose(16, dear), 0);
}

TEST(DraftGain, KeepsWithinWhatIsOffered) {
  DraftGain gain;
  const std::vector<double> cheap = linear_cost(0.0);
  EXPECT_EQ(gain.choose(0, cheap), 0);
  EXPECT_EQ(gain.choose(16, {}), 0);
  EXPECT_EQ(gain.choose(3, cheap), 3);
  EXPECT_EQ(gain.choose(100, cheap), DraftGain::kMaxDraft);
  EXPECT_EQ(gain.choose(100, std::vector<double>(40, 1.0)), DraftGain::kMaxDraft);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(gain.choose(5, std::vector<double>{1.1, nan, 0.0, -1.0, 9.0}), 1);
  EXPECT_EQ(gain.choose(3, std::vector<double>{nan, nan, nan}), 0);
  gain.record(99, 120);
  EXPECT_GT(gain.acceptance(DraftGain::kMaxDraft - 1), 0.5);
}

TEST(DraftGain, EqualGainsTakeTheShorter) {
  DraftGain gain;
  EXPECT_EQ(gain.choose(2, std::vector<double>{0.75, 0.875}), 1) << "1.5 and 1.75 tokens";
}

}  // namespace
}  // namespace freetoken
