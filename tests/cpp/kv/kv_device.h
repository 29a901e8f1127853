// A device that only remembers: for every (group, page, offset), the text whose last token was written there. A page
// list is right when each position that can still be attended holds exactly the sequence's own text up to it.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kv/kv_cache.h"

namespace freetoken {

struct TestSequence {
  SequenceKv kv;
  std::vector<int32_t> tokens;
  int computed = 0;
  int start = 0;  // where it was matched or restored
};

struct TestSnapshot {
  KvSnapshot kv;
  std::vector<int32_t> tokens;
};

inline KvGroup kv_group(int window, int page_tokens) {
  return {.retention = window ? Retention::kWindow : Retention::kAll,
          .window = window,
          .page_tokens = page_tokens,
          .layers = {}};
}

class KvDevice {
 public:
  // windows: 0 keeps everything.
  KvDevice(std::vector<int> windows, std::vector<int32_t> pages, int page_tokens, bool prefix_cache = true)
      : windows(windows),
        page_tokens(page_tokens),
        cells_(windows.size()),
        cache(options(windows, pages, page_tokens, prefix_cache)) {
    for (size_t g = 0; g < windows.size(); g++) cells_[g].assign(size_t(pages[g]) * page_tokens, kPoison);
  }

  // A request arrives; all but its last token may come from the cache.
  TestSequence* start(std::vector<int32_t> tokens) {
    auto s = std::make_unique<TestSequence>();
    s->tokens = std::move(tokens);
    const int limit = int(s->tokens.size()) - 1;
    const int before = cache.match_length(s->tokens, limit);
    s->start = s->computed = cache.match(s->tokens, limit, &s->kv);
    EXPECT_LE(s->computed, before);
    sequences.push_back(std::move(s));
    apply_copies();
    verify();
    return sequences.back().get();
  }
  // Its tokens below `to` are computed (drafted ones too, which commit() or reject() decides about). False: no pages.
  bool write(TestSequence* s, int to) {
    const std::vector<std::vector<int32_t>> before = s->kv.pages;
    if (!cache.append(&s->kv, s->computed, to)) {
      EXPECT_EQ(s->kv.pages.empty() ? before : s->kv.pages, before);
      EXPECT_TRUE(cache.take_copies().empty());
      return false;
    }
    apply_copies();
    for (int g = 0; g < int(windows.size()); g++)
      for (int p = s->computed; p < to; p++) {
        const int32_t page = s->kv.pages[g][p / page_tokens];
        if (page == kNoPage) {
          ADD_FAILURE() << "group " << g << ": no page for position " << p;
          return false;
        }
        for (const auto& other : sequences)
          EXPECT_TRUE(other.get() == s || count(other->kv.pages, g, page) == 0)
              << "the page of another sequence is written";
        for (const auto& other : snapshots)
          EXPECT_EQ(count(other->kv.pages, g, page), 0) << "the page of a snapshot is written";
        cells_[g][size_t(page) * page_tokens + p % page_tokens] = text(s->tokens, p + 1);
      }
    return true;
  }
  void commit(TestSequence* s, int computed) {
    if (computed < int(s->tokens.size())) cache.truncate(&s->kv, computed);
    s->computed = computed;
    cache.commit(&s->kv, s->tokens, computed);
    verify();
  }
  // The whole text.
  bool compute(TestSequence* s) {
    if (!write(s, int(s->tokens.size()))) return false;
    commit(s, int(s->tokens.size()));
    return true;
  }
  void finish(TestSequence* s) { release(s, s->computed); }
  void release(TestSequence* s, int computed) {
    cache.release(&s->kv, s->tokens, computed);
    std::erase_if(sequences, [&](const auto& other) { return other.get() == s; });
    verify();
  }
  // Start, compute, finish. False: no pages.
  bool run(std::vector<int32_t> tokens) {
    TestSequence* s = start(std::move(tokens));
    const bool done = compute(s);
    finish(s);
    return done;
  }

  TestSnapshot* snapshot(const TestSequence& s, int at) {
    auto made = std::make_unique<TestSnapshot>(
        TestSnapshot{cache.snapshot(s.kv, at), {s.tokens.begin(), s.tokens.begin() + at}});
    EXPECT_EQ(made->kv.tokens, at);
    snapshots.push_back(std::move(made));
    verify();
    return snapshots.back().get();
  }
  TestSequence* restore(const TestSnapshot& snapshot, const std::vector<int32_t>& more) {
    auto s = std::make_unique<TestSequence>();
    s->tokens = snapshot.tokens;
    s->tokens.insert(s->tokens.end(), more.begin(), more.end());
    if (!cache.restore(snapshot.kv, &s->kv)) return nullptr;
    s->start = s->computed = int(snapshot.tokens.size());
    sequences.push_back(std::move(s));
    verify();
    return sequences.back().get();
  }
  void drop(TestSnapshot* snapshot) {
    cache.release(&snapshot->kv);
    std::erase_if(snapshots, [&](const auto& other) { return other.get() == snapshot; });
    verify();
  }

  // Everything that has to hold at all times.
  void verify() {
    std::vector<const SequenceKv*> s;
    std::vector<const KvSnapshot*> n;
    for (const auto& each : sequences) {
      s.push_back(&each->kv);
      readable(each->kv.pages, each->tokens, each->computed,
               std::min(kMaxTruncateTokens, each->computed - each->start));
    }
    for (const auto& each : snapshots) {
      n.push_back(&each->kv);
      readable(each->kv.pages, each->tokens, int(each->tokens.size()), 0);
    }
    EXPECT_EQ(cache.check(s, n), "");
    const KvCacheStats stats = cache.stats();
    int available = INT32_MAX;
    for (size_t g = 0; g < windows.size(); g++) {
      EXPECT_EQ(stats.pages_free[g] + stats.pages_cached[g] + held(g), stats.pages_total[g]) << "group " << g;
      available = std::min(available, (stats.pages_free[g] + stats.pages_cached[g]) * page_tokens);
    }
    EXPECT_EQ(cache.available_tokens(), available);
  }
  // Pages of the group that sequences and snapshots hold.
  int held(size_t group) const {
    std::vector<int32_t> pages;
    auto add = [&](const std::vector<std::vector<int32_t>>& lists) {
      if (!lists.empty())
        std::copy_if(lists[group].begin(), lists[group].end(), std::back_inserter(pages),
                     [](int32_t p) { return p != kNoPage; });
    };
    for (const auto& s : sequences) add(s->kv.pages);
    for (const auto& s : snapshots) add(s->kv.pages);
    std::sort(pages.begin(), pages.end());
    return int(std::unique(pages.begin(), pages.end()) - pages.begin());
  }
  // The text in a cell, numbered.
  int content(int group, int32_t page, int offset) const { return cells_[group][size_t(page) * page_tokens + offset]; }
  int text(const std::vector<int32_t>& tokens, int count) {
    int id = 0;
    for (int i = 0; i < count; i++) id = texts_.emplace(std::pair(id, tokens[i]), int(texts_.size()) + 1).first->second;
    return id;
  }

  const std::vector<int> windows;
  const int page_tokens;

 private:
  static constexpr int kPoison = -1;
  std::vector<std::vector<int>> cells_;       // [group][page * page_tokens + offset]
  std::map<std::pair<int, int>, int> texts_;  // (text, next token) -> text

  static KvCacheOptions options(const std::vector<int>& windows, const std::vector<int32_t>& pages, int page_tokens,
                                bool prefix_cache) {
    KvCacheOptions options{.groups = {}, .pages = pages, .prefix_cache = prefix_cache};
    for (int window : windows) options.groups.push_back(kv_group(window, page_tokens));
    return options;
  }
  static long count(const std::vector<std::vector<int32_t>>& pages, int group, int32_t page) {
    return pages.empty() ? 0 : std::count(pages[group].begin(), pages[group].end(), page);
  }
  void apply_copies() {
    for (const PageCopy& copy : cache.take_copies())
      for (int i = 0; i < page_tokens; i++)
        cells_[copy.group][size_t(copy.to) * page_tokens + i] = cells_[copy.group][size_t(copy.from) * page_tokens + i];
  }
  void readable(const std::vector<std::vector<int32_t>>& pages, const std::vector<int32_t>& tokens, int computed,
                int slack) {
    std::vector<int> ids{0};
    for (int p = 0; p < computed; p++)
      ids.push_back(texts_.emplace(std::pair(ids.back(), tokens[p]), int(texts_.size()) + 1).first->second);
    for (int g = 0; g < int(windows.size()) && !pages.empty(); g++)
      for (int p = windows[g] ? std::max(0, computed - slack - windows[g] + 1) : 0; p < computed; p++) {
        const int32_t page = pages[g][p / page_tokens];
        ASSERT_NE(page, kNoPage) << "group " << g << ", position " << p << " of " << computed;
        ASSERT_EQ(content(g, page, p % page_tokens), ids[p + 1])
            << "group " << g << ", position " << p << " of " << computed << " is another's";
      }
  }

 public:
  KvCache cache;
  std::vector<std::unique_ptr<TestSequence>> sequences;
  std::vector<std::unique_ptr<TestSnapshot>> snapshots;
};

}  // namespace freetoken
