// One step of the engine: compose, forward, logits, samples.
#include <algorithm>
#include <array>
#include <limits>

#include "core/clock.h"
#include "engine/engine_loop.h"

namespace freetoken {
namespace {

constexpr size_t kProbeRows = 4;
constexpr int kDraftWindow = 1 << 15;  // tokens, at most 2.2 MB a sequence

}  // namespace

void EngineLoop::step() {
  const int64_t start_us = now_us();
  propose_drafts();
  const StepPlan& plan = scheduler_.compose();
  if (plan.empty()) return;
  prepare();
  auto fail = [&](const Status& status, const StepItem& item) {
    finish_all(static_cast<Choice*>(item.sequence)->owner, FinishReason::kError, status);
  };
  // The slice first: its time is then over before the decodes' tokens are drawn, and those go out at once.
  if (plan.slice) {
    const LayerSlice& slice = *plan.slice;
    const Status status = run_batch(Lane::kResumable, {&slice.item, 1}, slice.unit_begin, slice.unit_end);
    if (status.ok()) {
      scheduler_.advance_slice();
      if (slice.ends(parts_.limits.units)) take_results({&slice.item, 1});
    } else {
      fail(status, slice.item);
    }
  }
  if (!plan.items.empty()) {
    const Status status = run_batch(Lane::kMain, plan.items, 0, parts_.model->units());
    if (status.ok())
      take_results(plan.items);
    else
      for (const StepItem& item : plan.items) fail(status, item);
  }
  scheduler_.observe(double(now_us() - start_us));
  counters_.steps++;
  flush_events();
  counters_.step_us += now_us() - start_us;
  publish_stats();
}

void EngineLoop::propose_drafts() {
  if (!parts_.drafts) return;
  // A draft of k tokens makes the step longer for all `rows` requests that decode, but gives tokens to one. All together gain
  // when (rows + accepted) / rows > time(rows + k) / time(rows): for one request that is a cost of
  // 1 + rows * (time ratio - 1). Unknown until steps were seen.
  std::array<double, DraftGain::kMaxDraft> costs;
  const int rows = scheduler_.running();
  const double plain_us = scheduler_.costs().decode_us(rows);
  for (int k = 1; k <= DraftGain::kMaxDraft; k++)
    costs[k - 1] = 1 + rows * (scheduler_.costs().decode_us(rows + k) / plain_us - 1);
  bool probed = false;
  for (auto& [id, active] : active_)
    for (auto& owned : active->choices) {
      Choice& choice = *owned;
      const int most = std::min(DraftGain::kMaxDraft, choice.max_tokens - choice.sampled_tokens() - 1);
      choice.drafts.clear();
      if (choice.slot < 0 || !choice.drafter || !choice.decoding() || most <= 0) continue;
      if (parts_.limits.chaos_seed) {
        random_drafts(choice, most);
        continue;
      }
      if (!(plain_us > 0)) continue;
      choice.drafter->propose(most, choice.drafts);
      if (choice.drafts.empty()) continue;
      choice.drafts.resize(size_t(choice.gain.choose(int(choice.drafts.size()), costs)));
      if (choice.drafts.empty() || choice.gain.paying()) continue;
      // To find out costs the others time: a few rows, one request a step.
      choice.drafts.resize(probed ? 0 : std::min<size_t>(choice.drafts.size(), kProbeRows));
      probed = true;
    }
}

void EngineLoop::random_drafts(Choice& choice, int most) {
  if (chaos_() % 2) choice.drafter->propose(1 + int(chaos_() % uint64_t(most)), choice.drafts);
  for (uint64_t i = chaos_() % 3; i > 0 && int(choice.drafts.size()) < most; i--)
    choice.drafts.push_back(choice.tokens[chaos_() % choice.tokens.size()]);
}

void EngineLoop::prepare() {
  const std::vector<PageCopy> copies = scheduler_.take_copies();
  if (!copies.empty()) parts_.ops->copy_pages(*queue_, copies);
}

Status EngineLoop::run_batch(Lane lane, std::span<const StepItem> items, int first, int last) {
  const bool ends = last == parts_.model->units();
  make_batch(items, ends);
  const int64_t start_us = now_us();
  parts_.ops->begin_step(*queue_, {rows_, sequences_});
  parts_.model->forward(*queue_, lane, int(rows_.size()), first, last);
  if (ends) evaluate(lane);
  Status status = parts_.ops->wait(*queue_, parts_.ops->end_step(*queue_));
  counters_.device_us += now_us() - start_us;
  return status;
}

void EngineLoop::make_batch(std::span<const StepItem> items, bool ends) {
  rows_.clear();
  sequences_.clear();
  logit_rows_.clear();
  page_lists_.resize(std::max(page_lists_.size(), items.size()));
  for (size_t i = 0; i < items.size(); i++) {
    const StepItem& item = items[i];
    Choice& choice = static_cast<Choice&>(*item.sequence);
    const ActiveRequest& active = choice.owner;
    if (!choice.opened) {
      const Request& request = active.request;
      parts_.ops->open_sampler(*queue_, choice.slot,
                               {.params = &request.sampling,
                                .seed = active.seed,
                                .sample_index = choice.choice,
                                .prompt = request.prompt,
                                .sampled = std::span(choice.tokens).subspan(size_t(choice.prompt_tokens)),
                                .min_tokens = request.min_tokens,
                                .end_tokens = active.end_tokens});
      choice.opened = true;
    }
    page_lists_[i].clear();
    for (const auto& pages : choice.kv.pages) page_lists_[i].push_back(pages.data());
    sequences_.push_back({int32_t(rows_.size()), item.count, page_lists_[i].data()});
    const int known = int(choice.tokens.size());
    for (int p = item.first_position; p < item.first_position + item.count; p++) {
      const bool draw = p + 1 >= known && choice.sampled_tokens() < choice.max_tokens;
      const bool wanted = ends && (draw || (p >= choice.needed_from && p < choice.prompt_tokens));
      if (wanted) logit_rows_.push_back({&choice, int32_t(rows_.size()), p, draw});
      rows_.push_back({int32_t(i), p, p < known ? choice.tokens[p] : choice.drafts[p - known], wanted});
    }
  }
}

void EngineLoop::evaluate(Lane lane) {
  const size_t vocab = size_t(parts_.model->spec().vocab);
  results_.assign(logit_rows_.size(), {});
  read_logits_ = std::any_of(logit_rows_.begin(), logit_rows_.end(),
                             [](const LogitRow& r) { return r.choice->owner.request.logits != LogitsMode::kNone; });
  if (read_logits_) logits_.resize(logit_rows_.size() * vocab);
  for (size_t begin = 0; begin < logit_rows_.size(); begin += size_t(parts_.max_logit_rows)) {
    const size_t count = std::min(logit_rows_.size() - begin, size_t(parts_.max_logit_rows));
    picked_.clear();
    sample_rows_.clear();
    for (size_t i = 0; i < count; i++) {
      const LogitRow& row = logit_rows_[begin + i];
      const Choice& choice = *row.choice;
      const Request& request = choice.owner.request;
      picked_.push_back(row.row);
      SampleRow sample{.logits_row = int32_t(i), .slot = choice.slot, .position = row.position + 1, .logprobs = request.logprobs};
      if (row.draw) {
        const size_t ahead = size_t(row.position + 1) - choice.tokens.size();
        sample.ahead = std::span(choice.drafts).first(ahead);
      } else {
        const bool in_prompt = row.position + 1 < choice.prompt_tokens;
        sample.target = in_prompt ? choice.tokens[row.position + 1] : 0;
        sample.logprobs = in_prompt && request.prompt_logprobs ? std::max(request.logprobs, 0) : -1;
      }
      sample_rows_.push_back(sample);
    }
    const Tensor logits = parts_.model->logits(*queue_, lane, picked_);
    parts_.ops->sample(*queue_, logits, sample_rows_, std::span(results_).subspan(begin, count));
    if (read_logits_) parts_.ops->read(*queue_, logits, std::span(logits_).subspan(begin * vocab, count * vocab));
  }
}

void EngineLoop::take_results(std::span<const StepItem> items) {
  const size_t vocab = size_t(parts_.model->spec().vocab);
  auto logits_of = [&](size_t i) { return read_logits_ ? logits_.data() + i * vocab : nullptr; };
  size_t next = 0;
  for (const StepItem& item : items) {
    Choice& choice = static_cast<Choice&>(*item.sequence);
    const int drafts = int(choice.drafts.size()), known = int(choice.tokens.size());
    int accepted = item.count - drafts;
    for (; next < logit_rows_.size() && logit_rows_[next].choice == &choice; next++) {
      const LogitRow& row = logit_rows_[next];
      // A row behind a draft counts if all drafts before it were drawn.
      const int draft = row.position - known;
      if (draft >= 0 && (choice.done || int(choice.tokens.size()) != known + draft + 1 || choice.tokens.back() != choice.drafts[draft]))
        continue;
      if (draft >= 0) accepted++;
      take_row(row, results_[next], logits_of(next));
    }
    end_item(item, accepted, known);
  }
}

void EngineLoop::end_item(const StepItem& item, int accepted, int known) {
  Choice& choice = static_cast<Choice&>(*item.sequence);
  const int drafts = int(choice.drafts.size());
  const int end = item.first_position + accepted;
  const bool ended_prefill = !choice.prefilled && end >= choice.prompt_tokens;
  choice.prefilled |= ended_prefill;
  counters_.draft_tokens += drafts;
  counters_.accepted_draft_tokens += accepted - (item.count - drafts);
  if (ended_prefill) {
    counters_.prompt_tokens += choice.prompt_tokens;
    counters_.cached_prompt_tokens += choice.cached_tokens;
  }
  if (drafts > 0) choice.gain.record(drafts, accepted - (item.count - drafts));
  const std::span<const int32_t> sampled = std::span(choice.tokens).subspan(size_t(known));
  if (!sampled.empty() && !choice.done) {
    parts_.ops->advance_sampler(*queue_, choice.slot, sampled);
    if (choice.drafter) choice.drafter->advance(sampled);
    if (parts_.drafts && !choice.drafter) {
      choice.drafter = std::make_unique<NgramDraft>(kDraftWindow);
      choice.drafter->advance(choice.tokens);
    }
  }
  choice.needed_from = std::max(choice.needed_from, end);
  scheduler_.advance(item, accepted);
  if (!ended_prefill) return;
  if (choice.owner.choices.size() > 1 && choice.choice == 0) scheduler_.start_followers(&choice);
  if (choice.max_tokens == 0) {
    touch(choice);
    choice.event.prompt_logprobs = std::move(choice.prompt_logprobs);
    choice.event.logits = std::move(choice.prompt_logits);
    finish(choice, FinishReason::kLength);
  }
}

void EngineLoop::take_row(const LogitRow& row, const SampleResult& result, const float* logits) {
  Choice& choice = *row.choice;
  const Request& request = choice.owner.request;
  const bool in_prompt = row.position < choice.prompt_tokens;
  if (row.position == 0 && choice.needed_from == 0 && request.prompt_logprobs)
    choice.prompt_logprobs.push_back({choice.tokens[0], std::numeric_limits<float>::quiet_NaN(), {}});
  if (request.logits == LogitsMode::kAll || (request.logits == LogitsMode::kSampled && row.draw)) {
    std::vector<float>& to = in_prompt ? choice.prompt_logits : choice.event.logits;
    to.insert(to.end(), logits, logits + parts_.model->spec().vocab);
  }
  if (row.draw)
    take_token(choice, result);
  else if (request.prompt_logprobs && row.position + 1 < choice.prompt_tokens)
    choice.prompt_logprobs.push_back({result.token, result.logprob, result.top});
}

void EngineLoop::take_token(Choice& choice, const SampleResult& result) {
  if (choice.done) return;
  touch(choice);
  if (choice.sampled_tokens() == 0) {
    choice.event.prompt_logprobs = std::move(choice.prompt_logprobs);
    choice.event.logits = std::move(choice.prompt_logits);
  }
  if (result.token < 0) {
    // What a request bans is up to it: the sampler then has nothing left, as with a row that is not finite.
    const bool banned = !choice.owner.request.sampling.logit_bias.empty() || choice.owner.request.min_tokens > 0;
    return finish_all(choice.owner, FinishReason::kError,
                      Internal("no token can be drawn at position " + std::to_string(choice.tokens.size()) +
                               (banned ? ": logit_bias and min_tokens ban every token, or the model's logits are not finite"
                                       : ": the model's logits are not finite")));
  }
  choice.tokens.push_back(result.token);
  choice.event.tokens.push_back(result.token);
  const Request& request = choice.owner.request;
  if (request.logprobs >= 0) choice.event.logprobs.push_back({result.token, result.logprob, result.top});
  counters_.completion_tokens++;
  if (choice.owner.ends(result.token)) return finish(choice, FinishReason::kStop);
  if (choice.text.push(result.token, &choice.event.text)) return finish(choice, FinishReason::kStop);
  if (choice.sampled_tokens() == choice.max_tokens) {
    // The flush may complete a stop string: only then is it a stop.
    const bool stopped = choice.text.finish(&choice.event.text);
    finish(choice, stopped ? FinishReason::kStop : FinishReason::kLength);
  }
}

}  // namespace freetoken
