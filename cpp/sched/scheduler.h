// Scheduler: who runs in the next step, and with how many tokens.
//
// A step is all running decodes (one row each), then prefill in order of arrival up to the step's row limit. A request is
// admitted, first come first served, when a running place is free and the pages of its whole prompt and completion are;
// so a running request can never run out of pages. Not thread-safe (engine thread).
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "kv/page_pool.h"
#include "sched/sequence.h"

namespace freetoken {

struct SchedulerLimits {
  int max_running = 32;
  int max_rows = 512;         // of one step; at least max_running
  int page_tokens = 64;
  std::vector<int> pages;     // per KV group
};

struct StepItem {
  Sequence* sequence = nullptr;
  int first_position = 0, count = 0;
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits);

  // Pages per group that a sequence of this many tokens takes.
  int pages_for(int tokens) const { return (tokens + limits_.page_tokens - 1) / limits_.page_tokens; }
  // False when the request could never be admitted.
  bool fits(int tokens) const;

  void add(std::unique_ptr<Sequence> sequence);
  // Takes a waiting or running sequence out and frees its pages; null when there is none with this id.
  std::unique_ptr<Sequence> remove(RequestId id);

  // The next step's work; empty when there is nothing to do. The caller then advances `computed` of each item.
  const std::vector<StepItem>& compose();

  int waiting() const { return int(waiting_.size()); }
  int running() const { return int(running_.size()); }
  int pages_total() const;
  int pages_used() const;

 private:
  void admit();
  void free_pages(Sequence& sequence);

  SchedulerLimits limits_;
  std::vector<PagePool> pools_;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;  // in order of admission
  std::vector<StepItem> items_;
};

}  // namespace freetoken
