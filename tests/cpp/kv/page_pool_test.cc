// PagePool against a set of free ids, over random operations.
#include "kv/page_pool.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace freetoken {
namespace {

TEST(PagePool, AllocatesAllOrNothing) {
  PagePool pool(3);
  std::vector<int32_t> pages = {77};
  EXPECT_FALSE(pool.allocate(4, &pages));
  EXPECT_EQ(pages, std::vector<int32_t>{77});
  EXPECT_TRUE(pool.allocate(0, &pages));
  EXPECT_TRUE(pool.allocate(3, &pages));
  EXPECT_EQ(pages.size(), 4u) << "appends";
  EXPECT_EQ(pages[0], 77);
  EXPECT_EQ(pool.available(), 0);
  EXPECT_FALSE(pool.allocate(1, &pages));
  pages.erase(pages.begin());
  pool.release(&pages);
  EXPECT_TRUE(pages.empty());
  EXPECT_EQ(pool.available(), 3);
}

TEST(PagePool, AnEmptyPoolHasNothing) {
  PagePool pool(0);
  std::vector<int32_t> pages;
  EXPECT_FALSE(pool.allocate(1, &pages));
  EXPECT_TRUE(pool.allocate(0, &pages));
  EXPECT_EQ(pool.total(), 0);
}

TEST(PagePool, ReusesWarmPagesFirst) {
  PagePool pool(8);
  std::vector<int32_t> a, b, again;
  ASSERT_TRUE(pool.allocate(3, &a));
  ASSERT_TRUE(pool.allocate(2, &b));
  const std::vector<int32_t> freed = a;
  pool.release(&a);
  ASSERT_TRUE(pool.allocate(3, &again));
  EXPECT_EQ(std::set<int32_t>(again.begin(), again.end()), std::set<int32_t>(freed.begin(), freed.end()));
}

TEST(PagePool, RandomOperationsNeverShareOrLeak) {
  for (uint32_t seed = 0; seed < 8; seed++) {
    std::mt19937 rng(seed);
    const int total = 1 + int(rng() % 60);
    PagePool pool(total);
    std::set<int32_t> free;
    for (int p = 0; p < total; p++) free.insert(p);
    std::vector<std::vector<int32_t>> owners;
    for (int step = 0; step < 5000; step++) {
      if (rng() % 2) {
        const int count = int(rng() % 9);
        std::vector<int32_t> pages;
        const bool possible = count <= int(free.size());
        ASSERT_EQ(pool.allocate(count, &pages), possible);
        ASSERT_EQ(pages.size(), possible ? size_t(count) : 0u);
        for (int32_t p : pages) ASSERT_EQ(free.erase(p), 1u) << "page " << p << " was not free";
        owners.push_back(std::move(pages));
      } else if (!owners.empty()) {
        const size_t i = rng() % owners.size();
        free.insert(owners[i].begin(), owners[i].end());
        pool.release(&owners[i]);
        ASSERT_TRUE(owners[i].empty());
        owners.erase(owners.begin() + long(i));
      }
      ASSERT_EQ(pool.available(), int(free.size()));
      ASSERT_EQ(pool.total(), total);
    }
  }
}

}  // namespace
}  // namespace freetoken
