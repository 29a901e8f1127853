#include "engine/engine_loop.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <random>

#include "core/fp_env.h"

namespace freetoken {

EngineLoop::EngineLoop(EngineParts parts)
    : parts_(std::move(parts)), queue_(parts_.ops->make_queue()), scheduler_(parts_.limits) {
  request_limits_ = {parts_.model->spec().vocab, parts_.max_sequence_tokens};
  std::random_device entropy;
  next_seed_ = uint64_t(entropy()) << 32 | entropy();
  const OpsInfo info = parts_.ops->info();
  stats_.threads = info.threads;
  stats_.isa = info.isa;
  stats_.vocab = parts_.model->spec().vocab;
  stats_.page_tokens = parts_.limits.page_tokens;
  stats_.weight_bytes = parts_.ops->weight_bytes();
  stats_.kv_pages_total = scheduler_.pages_total();
  thread_ = std::thread([this] { run(); });
}

Status EngineLoop::submit(Request request, RequestId* id) {
  FT_RETURN_IF_ERROR(validate_request(request, request_limits_));
  const int tokens = int(request.prompt.size()) + request.max_tokens;
  const std::lock_guard lock(mutex_);
  FT_RETURN_IF_ERROR(health_);
  if (stop_) return Cancelled("the engine has been shut down");
  if (!scheduler_.fits(tokens))
    return InvalidArgument("prompt and completion of " + std::to_string(tokens) + " tokens need more KV cache than there is (" +
                           std::to_string(scheduler_.pages_total() * parts_.limits.page_tokens) + " tokens)");
  *id = next_id_++;
  inbox_.emplace_back(*id, std::move(request));
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
  stats.waiting += int(inbox_.size());
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
    for (auto& [id, active] : active_) finish(*active, FinishReason::kCancelled);
    flush_events();
  } catch (const std::exception& e) {
    fail_all(Internal(std::string("the engine thread died: ") + e.what()));
  }
}

bool EngineLoop::take_inbox() {
  std::vector<std::pair<RequestId, Request>> inbox;
  std::vector<RequestId> cancels;
  {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return stop_ || !inbox_.empty() || !cancels_.empty() || !active_.empty(); });
    inbox.swap(inbox_);
    cancels.swap(cancels_);
    for (auto& [id, request] : inbox) {
      auto active = std::make_unique<ActiveRequest>(std::move(request), parts_.vocab);
      active->seed = active->request.sampling.seed.value_or(next_seed_++ * 0x9E3779B97F4A7C15u);
      auto sequence = std::make_unique<Sequence>();
      sequence->id = id;
      sequence->tokens = active->request.prompt;
      sequence->prompt_tokens = int(active->request.prompt.size());
      sequence->max_tokens = active->request.max_tokens;
      active->sequence = sequence.get();
      active->event.request = id;
      active_.emplace(id, std::move(active));
      scheduler_.add(std::move(sequence));
    }
    if (stop_) return false;
  }
  for (RequestId id : cancels)
    if (const auto it = active_.find(id); it != active_.end()) finish(*it->second, FinishReason::kCancelled);
  flush_events();
  return true;
}

void EngineLoop::touch(ActiveRequest& active) {
  if (active.touched) return;
  active.touched = true;
  touched_.push_back(&active);
}

void EngineLoop::finish(ActiveRequest& active, FinishReason reason, Status error) {
  if (active.event.finish != FinishReason::kNone) return;
  active.text.finish(&active.event.text);
  active.event.finish = reason;
  active.event.stop_match = active.text.stop_match();
  active.event.error = std::move(error);
  touch(active);
  finished_.push_back(active.event.request);
}

void EngineLoop::flush_events() {
  if (touched_.empty()) return;
  for (ActiveRequest* active : touched_) {
    active->event.prompt_tokens = active->sequence->prompt_tokens;
    active->event.completion_tokens = active->sequence->sampled_tokens();
  }
  // Pages are free and statistics true before anybody hears of the end of a request.
  for (RequestId id : finished_) scheduler_.remove(id);
  {
    const std::lock_guard lock(mutex_);
    stats_.waiting = scheduler_.waiting();
    stats_.running = scheduler_.running();
    stats_.kv_pages_used = scheduler_.pages_used();
  }
  for (ActiveRequest* active : touched_) {
    Event event = std::move(active->event);
    active->event = Event{};
    active->event.request = event.request;
    active->event.finish = event.finish;
    active->touched = false;
    parts_.sink->on_event(std::move(event));
  }
  touched_.clear();
  for (RequestId id : finished_) active_.erase(id);
  finished_.clear();
  parts_.sink->on_step_end();
}

void EngineLoop::fail_all(const Status& error) {
  std::vector<std::pair<RequestId, Request>> inbox;
  {
    const std::lock_guard lock(mutex_);
    health_ = error;
    inbox.swap(inbox_);
  }
  for (auto& [id, request] : inbox) {
    Event event;
    event.request = id;
    event.finish = FinishReason::kError;
    event.error = error;
    event.prompt_tokens = int(request.prompt.size());
    parts_.sink->on_event(std::move(event));
  }
  for (auto& [id, active] : active_) finish(*active, FinishReason::kError, error);
  flush_events();
  parts_.sink->on_step_end();
}

}  // namespace freetoken
