#include "sched/scheduler.h"

#include <algorithm>

namespace freetoken {

Scheduler::Scheduler(const SchedulerLimits& limits) : limits_(limits) {
  for (int pages : limits.pages) pools_.emplace_back(pages);
}

bool Scheduler::fits(int tokens) const {
  return std::all_of(pools_.begin(), pools_.end(), [&](const PagePool& p) { return pages_for(tokens) <= p.total(); });
}

void Scheduler::add(std::unique_ptr<Sequence> sequence) { waiting_.push_back(std::move(sequence)); }

std::unique_ptr<Sequence> Scheduler::remove(RequestId id) {
  auto take = [&](auto& list) -> std::unique_ptr<Sequence> {
    const auto it = std::find_if(list.begin(), list.end(), [&](const auto& s) { return s->id == id; });
    if (it == list.end()) return nullptr;
    std::unique_ptr<Sequence> sequence = std::move(*it);
    list.erase(it);
    free_pages(*sequence);
    return sequence;
  };
  if (auto sequence = take(running_)) return sequence;
  return take(waiting_);
}

void Scheduler::free_pages(Sequence& sequence) {
  for (size_t g = 0; g < sequence.pages.size(); g++) pools_[g].release(&sequence.pages[g]);
  sequence.pages.clear();
}

void Scheduler::admit() {
  while (!waiting_.empty() && int(running_.size()) < limits_.max_running) {
    Sequence& next = *waiting_.front();
    const int pages = pages_for(next.prompt_tokens + next.max_tokens);
    if (!std::all_of(pools_.begin(), pools_.end(), [&](const PagePool& p) { return pages <= p.available(); })) return;
    next.pages.resize(pools_.size());
    for (size_t g = 0; g < pools_.size(); g++) pools_[g].allocate(pages, &next.pages[g]);
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

const std::vector<StepItem>& Scheduler::compose() {
  admit();
  items_.clear();
  int rows = 0;
  for (const auto& s : running_) {
    if (s->prefilling()) continue;
    items_.push_back({s.get(), s->computed, 1});
    rows++;
  }
  for (const auto& s : running_) {
    if (!s->prefilling()) continue;
    const int count = std::min(s->prompt_tokens - s->computed, limits_.max_rows - rows);
    if (count <= 0) break;
    items_.push_back({s.get(), s->computed, count});
    rows += count;
  }
  return items_;
}

int Scheduler::pages_total() const {
  int total = 0;
  for (const PagePool& p : pools_) total += p.total();
  return total;
}

int Scheduler::pages_used() const {
  int used = 0;
  for (const PagePool& p : pools_) used += p.total() - p.available();
  return used;
}

}  // namespace freetoken
