// Scheduler against a plain model of its rules, over random operations.
#include "sched/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <set>

namespace freetoken {
namespace {

std::unique_ptr<Sequence> make_sequence(RequestId id, int prompt, int max_tokens) {
  auto s = std::make_unique<Sequence>();
  s->id = id;
  s->prompt_tokens = prompt;
  s->max_tokens = max_tokens;
  s->tokens.assign(size_t(prompt), 1);
  return s;
}

// The rules of scheduler.h written out with counts instead of pages.
class PlainScheduler {
 public:
  struct Item {
    RequestId id;
    int first, count;
    bool operator==(const Item&) const = default;
  };
  struct Entry {
    RequestId id;
    int prompt, max_tokens, computed = 0, pages = 0;
  };

  explicit PlainScheduler(SchedulerLimits limits) : limits_(limits), free_(limits.pages) {}

  int pages_for(int tokens) const { return tokens / limits_.page_tokens + (tokens % limits_.page_tokens ? 1 : 0); }
  bool fits(int tokens) const {
    for (int pages : limits_.pages)
      if (pages_for(tokens) > pages) return false;
    return true;
  }
  void add(RequestId id, int prompt, int max_tokens) { waiting.push_back({id, prompt, max_tokens}); }
  bool remove(RequestId id) {
    for (size_t i = 0; i < running.size(); i++)
      if (running[i].id == id) {
        for (int& f : free_) f += running[i].pages;
        running.erase(running.begin() + long(i));
        return true;
      }
    for (size_t i = 0; i < waiting.size(); i++)
      if (waiting[i].id == id) {
        waiting.erase(waiting.begin() + long(i));
        return true;
      }
    return false;
  }
  std::vector<Item> compose() {
    while (!waiting.empty() && int(running.size()) < limits_.max_running) {
      Entry e = waiting.front();
      e.pages = pages_for(e.prompt + e.max_tokens);
      if (*std::min_element(free_.begin(), free_.end()) < e.pages) break;
      for (int& f : free_) f -= e.pages;
      running.push_back(e);
      waiting.pop_front();
    }
    std::vector<Item> items;
    int rows = 0;
    for (const Entry& e : running)
      if (e.computed >= e.prompt) items.push_back({e.id, e.computed, 1}), rows++;
    for (const Entry& e : running)
      if (e.computed < e.prompt && rows < limits_.max_rows) {
        items.push_back({e.id, e.computed, std::min(e.prompt - e.computed, limits_.max_rows - rows)});
        rows += items.back().count;
      }
    return items;
  }
  int used() const {
    int used = 0;
    for (size_t g = 0; g < free_.size(); g++) used += limits_.pages[g] - free_[g];
    return used;
  }
  Entry* find(RequestId id) {
    for (Entry& e : running)
      if (e.id == id) return &e;
    return nullptr;
  }

  std::deque<Entry> waiting;
  std::vector<Entry> running;

 private:
  SchedulerLimits limits_;
  std::vector<int> free_;
};

void run_random(uint32_t seed, SchedulerLimits limits, int steps) {
  std::mt19937 rng(seed);
  Scheduler scheduler(limits);
  PlainScheduler plain(limits);
  std::vector<RequestId> alive;
  RequestId next = 1;
  for (int step = 0; step < steps; step++) {
    for (int arrivals = int(rng() % 3); arrivals-- > 0;) {
      const int prompt = 1 + int(rng() % 150), max_tokens = int(rng() % 60), tokens = prompt + max_tokens;
      ASSERT_EQ(scheduler.fits(tokens), plain.fits(tokens));
      if (!plain.fits(tokens)) continue;
      scheduler.add(make_sequence(next, prompt, max_tokens));
      plain.add(next, prompt, max_tokens);
      alive.push_back(next++);
    }
    if (rng() % 4 == 0 && !alive.empty()) {  // waiting, prefilling or decoding, whichever it is
      const size_t i = rng() % alive.size();
      const auto removed = scheduler.remove(alive[i]);
      ASSERT_TRUE(removed);
      ASSERT_EQ(removed->id, alive[i]);
      ASSERT_TRUE(removed->pages.empty());
      ASSERT_TRUE(plain.remove(alive[i]));
      ASSERT_FALSE(scheduler.remove(alive[i])) << "twice";
      alive.erase(alive.begin() + long(i));
    }
    const std::vector<StepItem>& items = scheduler.compose();
    std::vector<PlainScheduler::Item> got;
    for (const StepItem& item : items) got.push_back({item.sequence->id, item.first_position, item.count});
    ASSERT_EQ(got, plain.compose()) << "seed " << seed << ", step " << step;
    ASSERT_EQ(scheduler.waiting(), int(plain.waiting.size()));
    ASSERT_EQ(scheduler.running(), int(plain.running.size()));
    ASSERT_EQ(scheduler.pages_used(), plain.used());

    int rows = 0;
    bool prefill_seen = false;
    std::vector<std::set<int32_t>> owned(limits.pages.size());
    for (const StepItem& item : items) {
      rows += item.count;
      const bool prefill = item.first_position < item.sequence->prompt_tokens;
      ASSERT_FALSE(prefill_seen && !prefill) << "decodes come first";
      prefill_seen |= prefill;
      ASSERT_EQ(item.sequence->pages.size(), limits.pages.size());
      for (size_t g = 0; g < limits.pages.size(); g++) {
        const auto& pages = item.sequence->pages[g];
        ASSERT_GE(int(pages.size()) * limits.page_tokens, item.sequence->prompt_tokens + item.sequence->max_tokens);
        for (int32_t p : pages) {
          ASSERT_TRUE(p >= 0 && p < limits.pages[g]);
          ASSERT_TRUE(owned[g].insert(p).second) << "page " << p << " belongs to two sequences";
        }
      }
    }
    ASSERT_LE(rows, limits.max_rows);

    // What the engine does with the step: positions are computed, tokens drawn, requests end.
    std::vector<RequestId> ended;
    for (const StepItem& item : items) {
      Sequence& s = *item.sequence;
      s.computed += item.count;
      plain.find(s.id)->computed += item.count;
      if (s.computed < s.prompt_tokens) continue;
      if (s.sampled_tokens() < s.max_tokens) s.tokens.push_back(1);
      if (s.sampled_tokens() == s.max_tokens || rng() % 16 == 0) ended.push_back(s.id);
    }
    for (RequestId id : ended) {
      ASSERT_TRUE(scheduler.remove(id));
      ASSERT_TRUE(plain.remove(id));
      std::erase(alive, id);
    }
    if (rng() % 200 == 0) {  // now and then everything goes
      for (RequestId id : alive) ASSERT_TRUE(scheduler.remove(id) && plain.remove(id));
      alive.clear();
      ASSERT_EQ(scheduler.pages_used(), 0);
      ASSERT_TRUE(scheduler.compose().empty());
    }
  }
  for (RequestId id : alive) ASSERT_TRUE(scheduler.remove(id));
  EXPECT_EQ(scheduler.pages_used(), 0);
  EXPECT_EQ(scheduler.waiting() + scheduler.running(), 0);
}

TEST(Scheduler, RandomOperationsFollowTheRules) {
  run_random(1, {.max_running = 4, .max_rows = 8, .page_tokens = 64, .pages = {9}}, 4000);
  run_random(2, {.max_running = 32, .max_rows = 512, .page_tokens = 64, .pages = {40}}, 4000);
  run_random(3, {.max_running = 3, .max_rows = 3, .page_tokens = 16, .pages = {30, 12, 50}}, 4000);
  run_random(4, {.max_running = 1, .max_rows = 1, .page_tokens = 1, .pages = {200, 180}}, 4000);
  run_random(5, {.max_running = 64, .max_rows = 64, .page_tokens = 64, .pages = {1000}}, 1500);
}

TEST(Scheduler, FitsIsAboutTheWholePool) {
  Scheduler s({.max_running = 1, .max_rows = 4, .page_tokens = 64, .pages = {4, 3}});
  EXPECT_TRUE(s.fits(1));
  EXPECT_TRUE(s.fits(192));
  EXPECT_FALSE(s.fits(193));
  s.add(make_sequence(1, 192, 0));
  s.compose();
  EXPECT_TRUE(s.fits(192)) << "what is used now will be free again";
}

// A request that does not fit yet is not overtaken by a smaller one behind it.
TEST(Scheduler, NobodyOvertakes) {
  Scheduler s({.max_running = 8, .max_rows = 512, .page_tokens = 64, .pages = {4}});
  s.add(make_sequence(1, 128, 0));
  s.add(make_sequence(2, 256, 0));
  s.add(make_sequence(3, 1, 1));
  ASSERT_EQ(s.compose().size(), 1u);
  EXPECT_EQ(s.waiting(), 2);
  ASSERT_TRUE(s.remove(1));
  ASSERT_EQ(s.compose().size(), 1u);
  EXPECT_EQ(s.compose()[0].sequence->id, 2u);
  EXPECT_EQ(s.waiting(), 1);
}

TEST(Scheduler, RemovingWhatIsNotThereIsNull) {
  Scheduler s({.max_running = 1, .max_rows = 1, .page_tokens = 64, .pages = {1}});
  EXPECT_EQ(s.remove(9), nullptr);
  EXPECT_TRUE(s.compose().empty());
}

// With as many decodes as rows there is no room for prefill, and never more rows than allowed.
TEST(Scheduler, DecodesCanFillTheStep) {
  Scheduler s({.max_running = 3, .max_rows = 3, .page_tokens = 64, .pages = {8}});
  for (RequestId id = 1; id <= 2; id++) s.add(make_sequence(id, 1, 10));
  for (const StepItem& item : s.compose()) item.sequence->computed++, item.sequence->tokens.push_back(1);
  s.add(make_sequence(3, 5, 1));
  for (int expected : {1, 1, 1, 1, 1}) {
    const auto& items = s.compose();
    ASSERT_EQ(items.size(), 3u);
    EXPECT_EQ(items[2].sequence->id, 3u);
    EXPECT_EQ(items[2].count, expected);
    for (const StepItem& item : items) item.sequence->computed += item.count, item.sequence->tokens.push_back(1);
  }
}

}  // namespace
}  // namespace freetoken
