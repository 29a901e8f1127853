// KvCache against a plain model over random operations: everything that is readable is the sequence's own text, nothing
// leaks, and as long as nothing had to be evicted the longest prefix that was ever stored is found.
#include <random>
#include <set>

#include "kv/kv_device.h"

namespace freetoken {
namespace {

struct Pool {
  const char* name;
  int32_t pages;
};

class RandomOperations : public testing::TestWithParam<std::tuple<std::vector<int>, Pool>> {
 protected:
  static constexpr int kPage = 4;

  void run(uint32_t seed, int steps) {
    const auto& [windows, pool] = GetParam();
    SCOPED_TRACE("seed " + std::to_string(seed));
    rng_.seed(seed);
    stored_.clear();
    cut_ = false;
    KvDevice d(windows, std::vector<int32_t>(windows.size(), pool.pages), kPage);
    for (int step = 0; step < steps && !HasFailure(); step++) {
      SCOPED_TRACE("step " + std::to_string(step));
      const uint32_t what = rng_() % 100;
      if (d.sequences.empty() || (what < 22 && d.sequences.size() < 6)) {
        admit(d);
      } else if (what < 65) {
        advance(d, any(d.sequences).get());
      } else if (what < 80) {
        TestSequence* s = any(d.sequences).get();
        const int computed = rng_() % 4 ? s->computed : 0;  // preempted, or worth nothing
        note(*s, computed);
        d.release(s, computed);
      } else if (what < 86 && d.snapshots.size() < 3) {
        const TestSequence& s = *any(d.sequences);
        const int at = s.computed - int(rng_() % 4);
        if (at > 0 && at >= s.start) d.snapshot(s, at);
      } else if (what < 92 && !d.snapshots.empty() && d.sequences.size() < 6) {
        d.restore(*any(d.snapshots), text(1 + rng_() % 6));
      } else if (what < 96 && !d.snapshots.empty()) {
        d.drop(any(d.snapshots).get());
      } else if (what == 96 && pool.pages < 100) {
        d.cache.clear_cache();
        d.verify();
        cut_ = true;
      } else {
        spill(d, *any(d.sequences));
      }
    }
    while (!d.sequences.empty()) d.finish(d.sequences.back().get());
    while (!d.snapshots.empty()) d.drop(d.snapshots.back().get());
    d.cache.clear_cache();
    for (size_t g = 0; g < windows.size(); g++) EXPECT_EQ(d.cache.stats().pages_free[g], pool.pages) << "pages leaked";
  }

 private:
  template <class T>
  std::unique_ptr<T>& any(std::vector<std::unique_ptr<T>>& list) {
    return list[rng_() % list.size()];
  }
  std::vector<int32_t> text(int count) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < count; i++) tokens.push_back(int32_t(rng_() % 2));
    return tokens;
  }
  // What the tree was given, as a set of texts: the whole pages of a running sequence, all of a finished one.
  void note(const TestSequence& s, int whole) {
    const int count = std::max(whole, s.computed / kPage * kPage);
    stored_.insert(std::vector<int32_t>(s.tokens.begin(), s.tokens.begin() + count));
  }

  void admit(KvDevice& d) {
    std::vector<int32_t> tokens;
    if (!stored_.empty() && rng_() % 4) {
      const std::vector<int32_t>& base = *std::next(stored_.begin(), long(rng_() % stored_.size()));
      tokens.assign(base.begin(), base.begin() + long(rng_() % (base.size() + 1)));
    }
    for (int32_t t : text(1 + rng_() % 14)) tokens.push_back(t);
    size_t longest = 0;
    for (const std::vector<int32_t>& known : stored_) {
      const size_t most = std::min(known.size(), tokens.size() - 1);
      longest = std::max(
          longest,
          size_t(std::mismatch(known.begin(), known.begin() + long(most), tokens.begin()).first - known.begin()));
    }
    const bool exact = !cut_ && d.cache.stats().evicted_pages == 0;
    const bool room = d.cache.stats().pages_free[0] > 0;
    const TestSequence* s = d.start(tokens);
    EXPECT_LE(size_t(s->computed), longest) << "more than was ever stored";
    EXPECT_TRUE(!exact || !room || size_t(s->computed) == longest) << s->computed << " of " << longest;
  }

  void advance(KvDevice& d, TestSequence* s) {
    int drafts = 0;
    if (s->computed == int(s->tokens.size())) {
      for (int32_t t : text(1 + rng_() % 9)) s->tokens.push_back(t);
      drafts = int(rng_() % s->tokens.size());
    }
    int to = int(s->tokens.size());
    if (to - s->computed > 3 && rng_() % 2) to -= 2, drafts = 0;  // a chunk
    const KvCacheStats before = d.cache.stats();
    const int end = (to + kPage - 1) / kPage, have = s->kv.pages.empty() ? 0 : int(s->kv.pages[0].size());
    const int more = std::max(0, end - have), rewritten = std::max(0, std::min(end, have) - s->computed / kPage);
    const bool done = d.write(s, to);
    const KvCacheStats after = d.cache.stats();
    int64_t lacking = 0;
    bool enough = true, too_few = false;
    for (size_t g = 0; g < d.windows.size(); g++) {
      lacking += std::max(0, more + rewritten - before.pages_free[g]);
      enough &= more + rewritten <= before.pages_free[g] + before.pages_cached[g];
      too_few |= more > before.pages_free[g] + before.pages_cached[g];
    }
    EXPECT_TRUE(done || !enough) << "there were enough pages";
    EXPECT_TRUE(!done || !too_few);
    // A leaf goes with its pages of all groups.
    EXPECT_LE(after.evicted_pages - before.evicted_pages, lacking * int64_t(d.windows.size()))
        << "evicted without need";
    if (!done) return;
    drafts = std::min({drafts, kMaxTruncateTokens, to - s->computed});
    if (to - drafts == 0) drafts = 0;
    if (drafts > 0) s->tokens.resize(size_t(to - drafts)), s->tokens.shrink_to_fit();
    const int computed = to - drafts;
    if (drafts > 0) d.cache.truncate(&s->kv, computed);
    d.commit(s, computed);
    note(*s, 0);
    for (size_t g = 0; g < d.windows.size(); g++) {
      if (!d.windows[g]) continue;
      const int gone = std::max(0, computed - d.windows[g] + 1 - kMaxTruncateTokens) / kPage;
      for (int p = 0; p < gone; p++)
        EXPECT_EQ(s->kv.pages[g][p], kNoPage) << "page " << p << " of group " << g << " fell out of the window";
    }
  }

  // What is listed is all that is needed, each position once.
  void spill(KvDevice& d, const TestSequence& s) {
    std::set<std::pair<int, int>> listed;
    for (const SpillItem& item : d.cache.gather_for_spill(s.kv, s.computed))
      for (int i = 0; i < item.tokens; i++) {
        const int position = item.page_index * kPage + i;
        ASSERT_LT(position, s.computed);
        EXPECT_TRUE(listed.emplace(item.group, position).second);
        EXPECT_EQ(item.page, s.kv.pages[item.group][item.page_index]);
        ASSERT_NE(item.page, kNoPage);
      }
    for (int g = 0; g < int(d.windows.size()); g++)
      for (int p = d.windows[g] ? std::max(0, s.computed - d.windows[g] + 1) : 0; p < s.computed; p++)
        EXPECT_TRUE(listed.count({g, p})) << "group " << g << ", position " << p;
  }

  std::mt19937 rng_;
  std::set<std::vector<int32_t>> stored_;
  bool cut_ = false;
};

TEST_P(RandomOperations, NeverReadAnotherText) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  const uint32_t seeds = 8;
#else
  const uint32_t seeds = 60;
#endif
  for (uint32_t seed = 0; seed < seeds && !HasFailure(); seed++) run(seed, 200);
}

INSTANTIATE_TEST_SUITE_P(Kv, RandomOperations,
                         testing::Combine(testing::Values(std::vector<int>{0}, std::vector<int>{0, 6},
                                                          std::vector<int>{5}, std::vector<int>{0, 3, 17}),
                                          testing::Values(Pool{"Ample", 2000}, Pool{"Tight", 24}, Pool{"Tiny", 11})),
                         [](const auto& info) {
                           std::string name;
                           for (int window : std::get<0>(info.param))
                             name += window ? "Window" + std::to_string(window) : "Full";
                           return name + std::get<1>(info.param).name;
                         });

}  // namespace
}  // namespace freetoken
