// Choice and grouping of experts against a plain sort.
#include "cpu/route_slot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace freetoken {
namespace {

// Probabilities with many equal ones: a stable sort by descending value keeps the lowest id first.
TEST(ChooseExperts, EqualsAStableSort) {
  std::mt19937 rng(1);
  for (int round = 0; round < 4000; round++) {
    const int experts = 1 + int(rng() % (round % 5 ? 40 : 300)),
              per_token = 1 + int(rng() % unsigned(std::min(experts, 16)));
    const unsigned levels = 1 + rng() % (round % 2 ? 4 : 100000);
    std::vector<float> p(static_cast<size_t>(experts));
    for (float& v : p) v = float(rng() % levels) / float(levels);
    std::vector<int32_t> order(p.size()), ids(size_t(per_token), -1);
    std::vector<float> weights(size_t(per_token), -1);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return p[size_t(a)] > p[size_t(b)]; });
    order.resize(size_t(per_token));
    const bool normalise = rng() % 2 && p[size_t(order[0])] > 0;
    const float scaling = rng() % 2 ? 1.0f : 2.5f;
    choose_experts(p.data(), experts, per_token, normalise, scaling, ids.data(), weights.data());
    ASSERT_EQ(ids, order) << experts << " experts, " << per_token;
    float total = 0;
    for (int32_t e : order) total += p[size_t(e)];
    for (int r = 0; r < per_token; r++) {
      const float own = p[size_t(order[size_t(r)])];
      ASSERT_EQ(weights[size_t(r)], (normalise ? own / total : own) * scaling);
    }
  }
}

TEST(ChooseExperts, AllExpertsOfARowOfEqualsInOrder) {
  const std::vector<float> p(8, 0.125f);
  int32_t ids[8];
  float weights[8];
  choose_experts(p.data(), 8, 8, true, 1.0f, ids, weights);
  for (int r = 0; r < 8; r++) {
    EXPECT_EQ(ids[r], r);
    EXPECT_EQ(weights[r], 0.125f);
  }
}

TEST(RouteSlot, GroupsByExpertWithRowsAscending) {
  std::mt19937 rng(2);
  RouteSlot slot;
  slot.reserve(60, 6, 50);
  for (int round = 0; round < 500; round++) {
    const int experts = 6 + int(rng() % 45), per_token = 1 + int(rng() % 6), rows = 1 + int(rng() % 60);
    slot.start(rows, experts, per_token);
    std::vector<std::vector<int>> users(static_cast<size_t>(experts));
    for (int r = 0; r < rows; r++) {
      std::vector<int32_t> all(static_cast<size_t>(experts));
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), rng);
      std::copy_n(all.begin(), per_token, slot.ids(r));
      for (int rank = 0; rank < per_token; rank++) users[size_t(all[size_t(rank)])].push_back(r);
    }
    slot.group();
    ASSERT_EQ(slot.entries(), rows * per_token);
    int next = 0, active = 0, most = 0;
    for (int e = 0; e < experts; e++) {
      if (users[size_t(e)].empty()) continue;
      ASSERT_LT(active, int(slot.active().size()));
      ASSERT_EQ(slot.active()[size_t(active)], e);
      ASSERT_EQ(slot.begin(active), next);
      for (int row : users[size_t(e)]) ASSERT_EQ(slot.row_of(next++), row);
      ASSERT_EQ(slot.end(active++), next);
      most = std::max(most, int(users[size_t(e)].size()));
    }
    ASSERT_EQ(active, int(slot.active().size()));
    ASSERT_EQ(slot.max_entries_of_one(), most);
    for (int r = 0; r < rows; r++)
      for (int rank = 0; rank < per_token; rank++) {
        const int entry = slot.entry_of(r, rank);
        ASSERT_EQ(slot.row_of(entry), r);
        const auto active_ids = slot.active();
        const int index = int(std::find(active_ids.begin(), active_ids.end(), slot.ids(r)[rank]) - active_ids.begin());
        ASSERT_TRUE(entry >= slot.begin(index) && entry < slot.end(index));
      }
  }
}

}  // namespace
}  // namespace freetoken
