#include "sched/scheduler.h"

#include <algorithm>

namespace freetoken {
namespace {

// Prefill always makes this much progress in a step, however slow the decodes are.
constexpr int kMinChunkTokens = 16;
// A chunk is at most so many times the last one: a wrong guess of the cost costs little.
constexpr int kChunkGrowth = 2;
// Share of max_itl_us that a step is planned to take.
constexpr double kPlanned = 0.8;

}  // namespace

Scheduler::Scheduler(const SchedulerLimits& limits, KvCacheOptions kv)
    : limits_(limits), kv_(std::move(kv)), chaos_(limits.chaos_seed) {
  for (int slot = limits.max_running - 1; slot >= 0; slot--) free_slots_.push_back(slot);
}

void Scheduler::add(Sequence* sequence) { waiting_.emplace(key(*sequence), sequence); }

void Scheduler::remove(Sequence* s) {
  if (const auto it = std::find(running_.begin(), running_.end(), s); it != running_.end()) {
    running_.erase(it);
    kv_.release(&s->kv, s->tokens, s->computed);
    free_slots_.push_back(s->slot);
  } else {
    waiting_.erase(key(*s));
    kv_.release(&s->start);
  }
  s->slot = -1;
  if (sliced_ == s) sliced_ = nullptr;
  for (auto& [unused, other] : waiting_)
    if (other->leader == s) other->leader = nullptr;
}

void Scheduler::preempt(Sequence* victim) {
  running_.erase(std::find(running_.begin(), running_.end(), victim));
  kv_.release(&victim->kv, victim->tokens, victim->computed);
  free_slots_.push_back(victim->slot);
  if (sliced_ == victim) sliced_ = nullptr;
  victim->slot = -1;
  victim->computed = victim->slice_tokens = 0;
  victim->drafts.clear();
  // It may be in the step already, with a decode: prefill is added in order, and victims come from the end.
  const auto item = std::find_if(plan_.items.begin(), plan_.items.end(), [&](const StepItem& i) { return i.sequence == victim; });
  if (item != plan_.items.end()) {
    rows_ -= item->count;
    plan_.cost.decode_rows -= item->count;
    plan_.items.erase(item);
  }
  waiting_.emplace(key(*victim), victim);
  preemptions_++;
}

bool Scheduler::drop_snapshots() {
  bool dropped = false;
  for (auto& [unused, s] : waiting_) {
    if (s->start.tokens == 0) continue;
    kv_.release(&s->start);
    s->start = {};
    dropped = true;
  }
  return dropped;
}

bool Scheduler::make_room(Sequence* sequence, int to_tokens) {
  while (!kv_.append(&sequence->kv, sequence->computed, to_tokens)) {
    if (drop_snapshots()) continue;
    if (running_.back() == sequence) return false;
    preempt(running_.back());
  }
  return true;
}

bool Scheduler::try_admit(Sequence* s) {
  if (free_slots_.empty()) return false;
  if (s->start.tokens > 0) {
    if (!kv_.restore(s->start, &s->kv)) return false;
    s->computed = s->start.tokens;
    kv_.release(&s->start);
    s->start = {};
  } else {
    // Every running request will want a page soon; without any the whole pool is there. Pages of the match count as
    // available until it is made, so they are counted twice in the first test and right in the second.
    const int limit = std::min(int(s->tokens.size()) - 1, s->needed_from);
    const int spare = kv_.page_tokens() * int(running_.size());
    auto lacks = [&](int cached) { return !running_.empty() && kv_.available_tokens() < int(s->tokens.size()) - cached + spare; };
    if (lacks(kv_.match_length(s->tokens, limit))) return false;
    s->computed = kv_.match(s->tokens, limit, &s->kv);
    if (lacks(s->computed)) {
      kv_.release(&s->kv, s->tokens, 0);
      s->computed = 0;
      return false;
    }
  }
  if (s->cached_tokens < 0) s->cached_tokens = std::min(s->computed, s->prompt_tokens);
  s->slot = free_slots_.back();
  free_slots_.pop_back();
  s->opened = false;
  s->skipped = 0;
  running_.insert(std::upper_bound(running_.begin(), running_.end(), s,
                                   [](const Sequence* a, const Sequence* b) { return a->before(*b); }),
                  s);
  return true;
}

void Scheduler::admit() {
  std::vector<Sequence*> overtaken;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    Sequence* s = it->second;
    if (s->leader) {  // not in anybody's way
      ++it;
      continue;
    }
    if (try_admit(s)) {
      bool enough = false;
      for (Sequence* other : overtaken) enough |= ++other->skipped >= kMaxSkips;
      it = waiting_.erase(it);
      if (enough) return;
      continue;
    }
    // A more important request takes the place of the least important one.
    if (!running_.empty() && s->priority < running_.back()->priority) {
      preempt(running_.back());
      it = waiting_.find(key(*s));
      continue;
    }
    if (free_slots_.empty() || s->skipped >= kMaxSkips) return;
    overtaken.push_back(s);
    ++it;
  }
}

void Scheduler::add_decodes() {
  // The list may lose its last elements to preemption on the way.
  for (size_t i = 0; i < running_.size(); i++) {
    Sequence* s = running_[i];
    if (!s->decoding()) continue;
    if (limits_.chaos_seed && chaos_() % 8 == 0) continue;
    const int others = int(running_.size() - i) - 1;  // a row for each of them: drafts are no reason to wait
    const int most = std::min(limits_.max_rows - rows_ - 1 - others, kMaxTruncateTokens);
    if (int(s->drafts.size()) > most) s->drafts.resize(std::max(most, 0));
    if (rows_ >= limits_.max_rows) break;
    if (!s->drafts.empty() && !kv_.append(&s->kv, s->computed, s->computed + 1 + int(s->drafts.size()))) s->drafts.clear();
    if (!make_room(s, s->computed + 1)) {
      preempt(s);
      break;  // it was the last
    }
    const int count = 1 + int(s->drafts.size());
    plan_.items.push_back({s, s->computed, count});
    rows_ += count;
    plan_.cost.decode_rows += count;
  }
}

// How many tokens of a sequence at `position` may still join the step.
int Scheduler::chunk_tokens(double left_us, int position) const {
  const int rows = limits_.max_rows - rows_, taken = plan_.cost.prefill_tokens;
  if (limits_.max_itl_us == 0 || plan_.cost.decode_rows == 0) return rows;
  if (!cost_.knows_prefill()) return std::min(rows, 4 * kMinChunkTokens - taken);
  const int by_time = std::max(cost_.prefill_tokens_within(left_us, position), kMinChunkTokens - taken);
  return std::min({rows, by_time, std::max(kChunkGrowth * last_chunk_, 4 * kMinChunkTokens) - taken});
}

void Scheduler::start_slice(Sequence* s, double left_us) {
  int count = std::min(s->remaining(), limits_.max_rows);
  if (limits_.chaos_seed == 0) {
    // As many tokens as let one unit fit into a step.
    const double unit_us = cost_.knows_slices() ? cost_.slice_unit_us(1) : cost_.prefill_us(s->computed, 1) / limits_.units;
    count = std::clamp(int(std::min(left_us / unit_us, double(count))), std::min(count, kMinChunkTokens), count);
  }
  if (!make_room(s, s->computed + count)) return;
  sliced_ = s;
  s->slice_tokens = count;
  s->slice_unit = 0;
}

void Scheduler::add_slice(Sequence* s, double left_us) {
  int units = limits_.units - s->slice_unit;
  if (limits_.chaos_seed) {
    units = 1 + int(chaos_() % uint64_t(units));
  } else if (plan_.cost.decode_rows > 0) {
    const double unit_us = cost_.slice_unit_us(s->slice_tokens);
    units = std::clamp(cost_.knows_slices() ? int(std::max(left_us, 0.0) / unit_us) : 1, 1, units);
  }
  plan_.slice = LayerSlice{{s, s->computed, s->slice_tokens}, s->slice_unit, s->slice_unit + units};
  plan_.cost.slice_tokens = s->slice_tokens;
  plan_.cost.slice_units = units;
}

void Scheduler::add_prefill() {
  double left_us = kPlanned * double(limits_.max_itl_us) - cost_.decode_us(plan_.cost.decode_rows);
  if (sliced_) return add_slice(sliced_, left_us);
  for (size_t i = 0; i < running_.size(); i++) {
    Sequence* s = running_[i];
    if (s->decoding() || s->remaining() == 0) continue;
    int count = std::min(s->remaining(), chunk_tokens(left_us, s->computed));
    if (count <= 0) break;
    if (limits_.chaos_seed) {
      if (chaos_() % 4 == 0) {
        start_slice(s, left_us);
        if (sliced_) return add_slice(s, left_us);
        continue;
      }
      count = 1 + int(chaos_() % uint64_t(count));
    } else if (limits_.max_itl_us > 0 && plan_.cost.decode_rows > 0 && cost_.knows_prefill() &&
               cost_.prefill_us(s->computed, kMinChunkTokens) > left_us && s->remaining() > 2 * kMinChunkTokens) {
      // Not even the smallest chunk keeps the promise: spread the layers of a large one.
      if (plan_.cost.prefill_tokens > 0) return;
      start_slice(s, left_us);
      if (sliced_) return add_slice(s, left_us);
      continue;
    }
    if (!make_room(s, s->computed + count)) {
      count = std::min(count, kv_.available_tokens() / kv_.page_tokens() * kv_.page_tokens());
      if (count <= 0 || !kv_.append(&s->kv, s->computed, s->computed + count)) break;
    }
    plan_.items.push_back({s, s->computed, count});
    plan_.cost.prefill_tokens += count;
    plan_.cost.prefill_positions += position_sum(s->computed, count);
    left_us -= cost_.prefill_us(s->computed, count);
    rows_ += count;
  }
  if (plan_.cost.prefill_tokens > 0) last_chunk_ = plan_.cost.prefill_tokens;
}

void Scheduler::unsettle() {
  if (!running_.empty() && chaos_() % 16 == 0) preempt(running_[chaos_() % running_.size()]);
  if (chaos_() % 64 == 0) kv_.clear_cache();
}

const StepPlan& Scheduler::compose() {
  plan_.items.clear();
  plan_.slice.reset();
  plan_.cost = {};
  rows_ = 0;
  if (limits_.chaos_seed) unsettle();
  admit();
  add_decodes();
  add_prefill();
  return plan_;
}

void Scheduler::advance(const StepItem& item, int accepted) {
  Sequence& s = *item.sequence;
  s.computed += accepted;
  s.drafts.clear();
  if (accepted < item.count) kv_.truncate(&s.kv, s.computed);
  kv_.commit(&s.kv, s.tokens, s.computed);
}

void Scheduler::advance_slice() {
  Sequence& s = *plan_.slice->item.sequence;
  s.slice_unit = plan_.slice->unit_end;
  if (!plan_.slice->ends(limits_.units)) return;
  s.slice_tokens = 0;
  sliced_ = nullptr;
}

void Scheduler::start_followers(Sequence* leader) {
  for (auto& [unused, s] : waiting_) {
    if (s->leader != leader) continue;
    s->leader = nullptr;
    if (s->prompt_tokens > 1) s->start = kv_.snapshot(leader->kv, s->prompt_tokens - 1);
  }
}

}  // namespace freetoken
