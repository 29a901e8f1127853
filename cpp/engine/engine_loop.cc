#include "engine/engine_loop.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <random>

#include "core/clock.h"
#include "core/fp_env.h"

namespace freetoken {

EngineLoop::EngineLoop(EngineParts parts)
    : parts_(std::move(parts)),
      queue_(parts_.ops->make_queue()),
      scheduler_(parts_.limits, parts_.kv),
      chaos_(parts_.limits.chaos_seed) {
  request_limits_ = {parts_.model->spec().vocab, parts_.max_sequence_tokens};
  std::random_device entropy;
  next_seed_ = uint64_t(entropy()) << 32 | entropy();
  const OpsInfo info = parts_.ops->info();
  counters_.threads = info.threads;
  counters_.device = info.device;
  counters_.isa = info.isa;
  counters_.batch_invariant = info.batch_invariant;
  counters_.vocab = parts_.model->spec().vocab;
  counters_.page_tokens = scheduler_.kv().page_tokens();
  counters_.weight_bytes = parts_.ops->weight_bytes();
  kv_capacity_tokens_ = int64_t(*std::max_element(parts_.kv.pages.begin(), parts_.kv.pages.end())) * counters_.page_tokens;
  publish_stats();
  thread_ = std::thread([this] { run(); });
}

Status EngineLoop::submit(Request request, RequestId* id) {
  FT_RETURN_IF_ERROR(validate_request(request, request_limits_));
  const int tokens = int(request.prompt.size()) + request.max_tokens;
  if (!scheduler_.fits(tokens))
    return InvalidArgument("prompt and completion of " + std::to_string(tokens) + " tokens need more KV cache than there is (" +
                           std::to_string(kv_capacity_tokens_) + " tokens)");
  if (request.n > parts_.max_queued)
    return InvalidArgument("n is " + std::to_string(request.n) + ", more than the " + std::to_string(parts_.max_queued) +
                           " places of the queue");
  const std::lock_guard lock(mutex_);
  FT_RETURN_IF_ERROR(health_);
  if (stop_) return Cancelled("the engine has been shut down");
  int queued = stats_.waiting;
  for (const Incoming& other : inbox_) queued += other.request.n;
  if (queued + request.n > parts_.max_queued)
    return ResourceExhausted("the queue is full: " + std::to_string(queued) + " of " + std::to_string(parts_.max_queued) +
                             " places are taken; try again later");
  *id = next_id_++;
  inbox_.push_back({*id, std::move(request), 0});
  Incoming& incoming = inbox_.back();
  if (incoming.request.timeout_us > 0) incoming.deadline_us = now_us() + incoming.request.timeout_us;
  wake_.notify_one();
  return {};
}

void EngineLoop::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  cancels_.push_back(id);
  wake_.notify_one();
}

EngineStats EngineLoop::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  for (const Incoming& incoming : inbox_) stats.waiting += incoming.request.n;
  return stats;
}

Status EngineLoop::health() const {
  const std::lock_guard lock(mutex_);
  return health_;
}

void EngineLoop::shutdown() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    wake_.notify_one();
  }
  const std::lock_guard lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

void EngineLoop::run() {
  set_denormals_to_zero();
  try {
    while (take_inbox()) step();
    for (auto& [id, active] : active_) finish_all(*active, FinishReason::kCancelled);
    flush_events();
  } catch (const std::exception& e) {
    fail_all(Internal(std::string("the engine thread died: ") + e.what()));
  }
}

bool EngineLoop::take_inbox() {
  std::vector<Incoming> inbox;
  std::vector<RequestId> cancels;
  {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return stop_ || !inbox_.empty() || !cancels_.empty() || !active_.empty(); });
    inbox.swap(inbox_);
    cancels.swap(cancels_);
    for (Incoming& incoming : inbox) start(std::move(incoming));
    if (!inbox.empty()) {  // before the lock is given up: no request may be counted nowhere
      refresh_counters();
      stats_ = counters_;
    }
    if (stop_) return false;
  }
  for (RequestId id : cancels)
    if (const auto it = active_.find(id); it != active_.end()) finish_all(*it->second, FinishReason::kCancelled);
  expire();
  flush_events();
  return true;
}

void EngineLoop::start(Incoming incoming) {
  auto owned = std::make_unique<ActiveRequest>();
  ActiveRequest& active = *owned;
  active.request = std::move(incoming.request);
  const Request& request = active.request;
  active.seed = request.sampling.seed.value_or(next_seed_++ * 0x9E3779B97F4A7C15u);
  active.deadline_us = incoming.deadline_us;
  if (!request.ignore_eos) active.end_tokens = parts_.eos_token_ids;
  active.end_tokens.insert(active.end_tokens.end(), request.stop_token_ids.begin(), request.stop_token_ids.end());
  active.open_choices = request.n;
  if (active.deadline_us) deadlines_.emplace(active.deadline_us, incoming.id);
  active_.emplace(incoming.id, std::move(owned));
  for (int i = 0; i < request.n; i++) {
    Choice& choice = *active.choices.emplace_back(std::make_unique<Choice>(active, i, parts_.vocab));
    choice.id = choice.event.request = incoming.id;
    choice.event.choice = i;
    choice.priority = request.priority;
    choice.arrival = next_arrival_++;
    choice.tokens = request.prompt;
    choice.prompt_tokens = int(request.prompt.size());
    choice.max_tokens = request.max_tokens;
    if (i > 0) choice.leader = active.choices[0].get();
    else if (active.wants_prompt_rows()) choice.needed_from = 0;
    scheduler_.add(&choice);
  }
}

void EngineLoop::expire() {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now_us()) {
    ActiveRequest& active = *active_.at(deadlines_.begin()->second);
    deadlines_.erase(deadlines_.begin());
    finish_all(active, FinishReason::kTimeout,
               Cancelled("the request was not finished within " + std::to_string(active.request.timeout_us / 1000) + " ms"));
  }
}

void EngineLoop::touch(Choice& choice) {
  if (choice.touched) return;
  choice.touched = true;
  touched_.push_back(&choice);
}

void EngineLoop::finish(Choice& choice, FinishReason reason, Status error) {
  if (choice.done) return;
  choice.done = true;
  choice.text.finish(&choice.event.text);
  choice.event.finish = reason;
  choice.event.stop_match = choice.text.stop_match();
  choice.event.error = std::move(error);
  touch(choice);
  finished_.push_back(&choice);
}

void EngineLoop::finish_all(ActiveRequest& active, FinishReason reason, const Status& error) {
  for (auto& choice : active.choices) finish(*choice, reason, error);
}

void EngineLoop::refresh_counters() {
  const KvCacheStats kv = scheduler_.kv().stats();
  counters_.kv_pages_total = counters_.kv_pages_used = counters_.kv_pages_cached = 0;
  for (size_t g = 0; g < kv.pages_total.size(); g++) {
    counters_.kv_pages_total += kv.pages_total[g];
    counters_.kv_pages_used += kv.pages_total[g] - kv.pages_free[g];
    counters_.kv_pages_cached += kv.pages_cached[g];
  }
  counters_.waiting = scheduler_.waiting();
  counters_.running = scheduler_.running();
  counters_.preemptions = scheduler_.preemptions();
}

void EngineLoop::publish_stats() {
  refresh_counters();
  const std::lock_guard lock(mutex_);
  stats_ = counters_;
}

void EngineLoop::flush_events() {
  if (touched_.empty()) return;
  for (Choice* choice : touched_) {
    choice->event.prompt_tokens = choice->prompt_tokens;
    choice->event.cached_tokens = std::max(choice->cached_tokens, 0);
    choice->event.completion_tokens = choice->sampled_tokens();
  }
  // Pages are free and statistics true before anybody hears of the end of a request.
  for (Choice* choice : finished_) scheduler_.remove(choice);
  publish_stats();
  for (Choice* choice : touched_) {
    Event event = std::move(choice->event);
    choice->event = Event{};
    choice->event.request = event.request;
    choice->event.choice = event.choice;
    choice->touched = false;
    parts_.sink->on_event(std::move(event));
  }
  touched_.clear();
  for (Choice* choice : finished_) {
    ActiveRequest& active = choice->owner;
    if (--active.open_choices > 0) continue;
    if (active.deadline_us) deadlines_.erase({active.deadline_us, choice->id});
    active_.erase(choice->id);
  }
  finished_.clear();
  parts_.sink->on_step_end();
}

void EngineLoop::fail_all(const Status& error) {
  std::vector<Incoming> inbox;
  {
    const std::lock_guard lock(mutex_);
    health_ = error;
    inbox.swap(inbox_);
  }
  for (const Incoming& incoming : inbox)
    for (int choice = 0; choice < incoming.request.n; choice++) {
      Event event;
      event.request = incoming.id;
      event.choice = choice;
      event.finish = FinishReason::kError;
      event.error = error;
      event.prompt_tokens = int(incoming.request.prompt.size());
      parts_.sink->on_event(std::move(event));
    }
  for (auto& [id, active] : active_) finish_all(*active, FinishReason::kError, error);
  flush_events();
  parts_.sink->on_step_end();
}

}  // namespace freetoken
