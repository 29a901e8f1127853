// One step of the engine: compose, forward, logits, samples.
#include <algorithm>
#include <limits>

#include "engine/engine_loop.h"

namespace freetoken {

struct EngineLoop::LogitRow {
  ActiveRequest* active = nullptr;
  int32_t row = 0;        // of the step
  int32_t position = 0;
  bool draw = false;      // sample the next token; else only report about the prompt's next token
};

void EngineLoop::step() {
  const std::vector<StepItem>& items = scheduler_.compose();
  if (items.empty()) return;
  const Status status = forward(items);
  if (!status.ok())
    for (const StepItem& item : items) finish(*active_.at(item.sequence->id), FinishReason::kError, status);
  {
    const std::lock_guard lock(mutex_);
    stats_.steps++;
    stats_.waiting = scheduler_.waiting();
    stats_.running = scheduler_.running();
    stats_.kv_pages_used = scheduler_.pages_used();
  }
  flush_events();
}

Status EngineLoop::forward(const std::vector<StepItem>& items) {
  rows_.clear();
  sequences_.clear();
  page_lists_.resize(std::max(page_lists_.size(), items.size()));
  std::vector<LogitRow> logit_rows;
  for (size_t i = 0; i < items.size(); i++) {
    const StepItem& item = items[i];
    const Sequence& s = *item.sequence;
    ActiveRequest& active = *active_.at(s.id);
    if (item.first_position == 0 && active.request.prompt_logprobs)
      active.prompt_logprobs.push_back({s.tokens[0], std::numeric_limits<float>::quiet_NaN(), {}});
    page_lists_[i].clear();
    for (const auto& pages : s.pages) page_lists_[i].push_back(pages.data());
    sequences_.push_back({int32_t(rows_.size()), item.count, page_lists_[i].data()});
    for (int p = item.first_position; p < item.first_position + item.count; p++) {
      const bool last = p + 1 == int(s.tokens.size()), draw = last && s.sampled_tokens() < s.max_tokens;
      const bool wanted = draw || (p < s.prompt_tokens && active.wants_prompt_rows());
      if (wanted) logit_rows.push_back({&active, int32_t(rows_.size()), p, draw});
      rows_.push_back({int32_t(i), p, s.tokens[p], wanted});
    }
  }
  parts_.ops->begin_step(*queue_, {rows_, sequences_});
  parts_.model->forward(*queue_, int(rows_.size()), 0, parts_.model->layers());
  for (const StepItem& item : items) item.sequence->computed += item.count;
  // Chunks of prompts may want no logits; a failure of their layers must not wait for the next step.
  if (logit_rows.empty()) FT_RETURN_IF_ERROR(parts_.ops->wait(*queue_, {}));
  FT_RETURN_IF_ERROR(evaluate(logit_rows));
  for (const StepItem& item : items) {
    Sequence& s = *item.sequence;
    ActiveRequest& active = *active_.at(s.id);
    const bool ended_prefill = item.first_position < s.prompt_tokens && s.computed >= s.prompt_tokens;
    if (ended_prefill) {
      const std::lock_guard lock(mutex_);
      stats_.prompt_tokens += s.prompt_tokens;
    }
    if (ended_prefill && s.max_tokens == 0) {
      touch(active);
      active.event.prompt_logprobs = std::move(active.prompt_logprobs);
      active.event.logits = std::move(active.prompt_logits);
      finish(active, FinishReason::kLength);
    }
  }
  return {};
}

Status EngineLoop::evaluate(std::vector<LogitRow>& rows) {
  const int vocab = parts_.model->spec().vocab;
  std::vector<int32_t> picked;
  std::vector<SampleRow> samples;
  std::vector<SampleResult> results;
  std::vector<float> values;
  for (size_t begin = 0; begin < rows.size(); begin += parts_.max_logit_rows) {
    const size_t end = std::min(rows.size(), begin + parts_.max_logit_rows);
    picked.clear();
    samples.clear();
    bool read = false;
    for (size_t i = begin; i < end; i++) {
      const LogitRow& row = rows[i];
      const Request& request = row.active->request;
      const Sequence& s = *row.active->sequence;
      picked.push_back(row.row);
      SampleRow sample{.logits_row = int32_t(i - begin),
                       .temperature = request.sampling.temperature,
                       .top_k = request.sampling.top_k,
                       .top_p = request.sampling.top_p,
                       .seed = row.active->seed,
                       .position = row.position + 1,
                       .logprobs = request.logprobs};
      if (!row.draw) {
        const bool in_prompt = row.position + 1 < s.prompt_tokens;
        sample.target = in_prompt ? s.tokens[row.position + 1] : 0;
        sample.logprobs = in_prompt && request.prompt_logprobs ? std::max(request.logprobs, 0) : -1;
      }
      samples.push_back(sample);
      read |= request.logits != LogitsMode::kNone;
    }
    results.assign(samples.size(), {});
    const Tensor logits = parts_.model->logits(*queue_, picked);
    const Ticket ticket = parts_.ops->sample(*queue_, logits, samples, results);
    FT_RETURN_IF_ERROR(parts_.ops->wait(*queue_, ticket));
    if (read) {
      values.resize(picked.size() * size_t(vocab));
      FT_RETURN_IF_ERROR(parts_.ops->wait(*queue_, parts_.ops->read(*queue_, logits, values)));
    }
    for (size_t i = begin; i < end; i++) {
      const LogitRow& row = rows[i];
      ActiveRequest& active = *row.active;
      const bool in_prompt = row.position < active.sequence->prompt_tokens;
      const LogitsMode mode = active.request.logits;
      if (mode == LogitsMode::kAll || (mode == LogitsMode::kSampled && row.draw)) {
        const float* from = values.data() + (i - begin) * size_t(vocab);
        std::vector<float>& to = in_prompt ? active.prompt_logits : active.event.logits;
        to.insert(to.end(), from, from + vocab);
      }
      if (row.draw) {
        take_sample(active, results[i - begin]);
      } else if (active.request.prompt_logprobs && row.position + 1 < active.sequence->prompt_tokens) {
        take_prompt_row(active, results[i - begin]);
      }
    }
  }
  return {};
}

void EngineLoop::take_prompt_row(ActiveRequest& active, const SampleResult& result) {
  active.prompt_logprobs.push_back({result.token, result.logprob, result.top});
}

bool EngineLoop::ends(const Request& request, int32_t token) const {
  const auto& eos = parts_.eos_token_ids;
  const auto& stop = request.stop_token_ids;
  return (!request.ignore_eos && std::find(eos.begin(), eos.end(), token) != eos.end()) ||
         std::find(stop.begin(), stop.end(), token) != stop.end();
}

void EngineLoop::take_sample(ActiveRequest& active, const SampleResult& result) {
  if (active.event.finish != FinishReason::kNone) return;
  Sequence& s = *active.sequence;
  touch(active);
  if (s.sampled_tokens() == 0) {
    active.event.prompt_logprobs = std::move(active.prompt_logprobs);
    active.event.logits = std::move(active.prompt_logits);
  }
  if (result.token < 0)
    return finish(active, FinishReason::kError, Internal("the model's logits at position " + std::to_string(s.computed) +
                                                         " are not finite: no token can be drawn"));
  s.tokens.push_back(result.token);
  active.event.tokens.push_back(result.token);
  if (active.request.logprobs >= 0) active.event.logprobs.push_back({result.token, result.logprob, result.top});
  {
    const std::lock_guard lock(mutex_);
    stats_.completion_tokens++;
  }
  if (ends(active.request, result.token)) return finish(active, FinishReason::kStop);
  if (active.text.push(result.token, &active.event.text)) return finish(active, FinishReason::kStop);
  if (s.sampled_tokens() == s.max_tokens) {
    // The flush may complete a stop string: only then is it a stop.
    const bool stopped = active.text.finish(&active.event.text);
    finish(active, stopped ? FinishReason::kStop : FinishReason::kLength);
  }
}

}  // namespace freetoken
