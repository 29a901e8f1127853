// Scheduler: who runs in the next step, and with how many tokens.
//
// A step is one row (and drafts) of every running request that decodes, then prefill work, oldest request first, up to the
// row limit and to the time that is left below max_itl_us. Usually prefill is cut by tokens and shares the batch of the
// decodes. Where even few tokens would take too long (they touch nearly all experts), a large chunk runs as a *slice*: a
// batch of its own that advances some units of the forward pass per step (Lane::kResumable).
//
// Pages are taken as they are needed. When there are none, the youngest running request of the lowest priority is
// preempted: its pages go to the prefix cache, and it resumes from what is still there. The order is (priority, arrival);
// of the waiting requests one that fits may overtake one that does not, kMaxSkips times. Not thread-safe (engine thread).
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "kv/kv_cache.h"
#include "sched/cost_model.h"
#include "sched/sequence.h"

namespace freetoken {

constexpr int kMaxSkips = 16;

struct SchedulerLimits {
  int max_running = 32;
  int max_rows = 512;            // of one batch; at least max_running
  int64_t max_itl_us = 500'000;  // 0 = no bound
  int units = 1;                 // of the forward pass
  uint64_t chaos_seed = 0;       // random chunks, slices, pauses and preemptions, for tests
};

struct StepItem {
  Sequence* sequence = nullptr;
  int first_position = 0, count = 0;  // tokens[first_position ..], then the sequence's drafts
};

struct LayerSlice {
  StepItem item;
  int unit_begin = 0, unit_end = 0;
  bool ends(int units) const { return unit_end == units; }
};

struct StepPlan {
  std::vector<StepItem> items;     // one batch, all units
  std::optional<LayerSlice> slice;
  StepCost cost;
  bool empty() const { return items.empty() && !slice; }
};

class Scheduler {
 public:
  Scheduler(const SchedulerLimits& limits, KvCacheOptions kv);

  // False when the request could never run.
  bool fits(int tokens) const { return kv_.fits(tokens); }

  // The sequence must outlive its stay, which ends with remove().
  void add(Sequence* sequence);
  // Takes a waiting or running sequence out; what it computed stays in the prefix cache.
  void remove(Sequence* sequence);

  // The next step's work; empty when there is nothing to do. Afterwards the caller enqueues take_copies(), opens the
  // sampler slots of sequences that are not `opened`, runs the step, and calls advance() for each item that ran.
  const StepPlan& compose();
  std::vector<PageCopy> take_copies() { return kv_.take_copies(); }
  // The item's positions are computed; `accepted` of them count (less than the item's when drafts were rejected).
  // Called after the sequence's tokens were extended by what was sampled.
  void advance(const StepItem& item, int accepted);
  // The slice's units are done. After the last of them its item is advanced like any other.
  void advance_slice();
  // How long the step took.
  void observe(double us) { cost_.observe(plan_.cost, us); }
  // The waiting choices of the same request may start from the leader's prompt; its prefill has just ended.
  void start_followers(Sequence* leader);

  int waiting() const { return int(waiting_.size()); }
  int running() const { return int(running_.size()); }
  int64_t preemptions() const { return preemptions_; }
  const CostModel& costs() const { return cost_; }
  const KvCache& kv() const { return kv_; }

 private:
  using Key = std::pair<int, uint64_t>;
  static Key key(const Sequence& s) { return {s.priority, s.arrival}; }

  void admit();
  bool try_admit(Sequence* sequence);
  void preempt(Sequence* victim);
  // Pages for positions below to_tokens; preempts requests younger than `sequence` when there are none. False when that is
  // not enough.
  bool make_room(Sequence* sequence, int to_tokens);
  bool drop_snapshots();
  void add_decodes();
  void add_prefill();
  void add_slice(Sequence* sequence, double left_us);
  void start_slice(Sequence* sequence, double left_us);
  int chunk_tokens(double left_us, int position) const;
  void unsettle();   // chaos

  SchedulerLimits limits_;
  KvCache kv_;
  CostModel cost_;
  std::map<Key, Sequence*> waiting_;
  std::vector<Sequence*> running_;  // in order of (priority, arrival)
  std::vector<int> free_slots_;
  StepPlan plan_;
  int rows_ = 0;                    // of plan_.items
  Sequence* sliced_ = nullptr;
  int last_chunk_ = 0;
  int64_t preemptions_ = 0;
  std::mt19937_64 chaos_;
};

}  // namespace freetoken
