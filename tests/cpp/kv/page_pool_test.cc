// PagePool against a map of counts, over random operations.
#include "kv/page_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace freetoken {
namespace {

TEST(PagePool, ReusesWarmPagesFirst) {
  PagePool pool(8);
  const int32_t a = pool.allocate(), b = pool.allocate();
  EXPECT_NE(a, b);
  EXPECT_EQ(pool.unref(a), 0);
  EXPECT_EQ(pool.allocate(), a);
  EXPECT_EQ(PagePool(0).available(), 0);
}

TEST(PagePool, RandomOperationsCountReferences) {
  for (uint32_t seed = 0; seed < 8; seed++) {
    std::mt19937 rng(seed);
    const int total = 1 + int(rng() % 60);
    PagePool pool(total);
    std::map<int32_t, int> refs;  // of pages in use
    for (int step = 0; step < 5000; step++) {
      auto any = [&] { return std::next(refs.begin(), long(rng() % refs.size())); };
      if (rng() % 2 && pool.available() > 0) {
        const int32_t page = pool.allocate();
        ASSERT_TRUE(page >= 0 && page < total);
        ASSERT_TRUE(refs.emplace(page, 1).second) << "page " << page << " was in use";
      } else if (rng() % 3 == 0 && !refs.empty()) {
        const auto it = any();
        pool.ref(it->first);
        it->second++;
      } else if (!refs.empty()) {
        const auto it = any();
        ASSERT_EQ(pool.unref(it->first), --it->second);
        if (it->second == 0) refs.erase(it);
      }
      ASSERT_EQ(pool.available(), total - int(refs.size()));
      for (const auto& [page, count] : refs) ASSERT_EQ(pool.refs(page), count);
    }
  }
}

}  // namespace
}  // namespace freetoken
