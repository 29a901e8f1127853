#include "sample/sampler_state.h"

#include <algorithm>
#include <limits>

namespace freetoken {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

}  // namespace

SamplerState::SamplerState(const SamplerInit& init, int vocab)
    : params_{init.params->temperature, init.params->top_k, init.params->top_p, init.params->min_p, init.seed},
      vocab_(vocab),
      presence_(init.params->presence_penalty),
      frequency_(init.params->frequency_penalty),
      repetition_(init.params->repetition_penalty),
      penalises_(presence_ != 0.0f || frequency_ != 0.0f || repetition_ != 1.0f),
      min_tokens_(init.min_tokens) {
  if (repetition_ != 1.0f) add_prompt(init.prompt);
  add_biases(init.params->logit_bias);
  if (min_tokens_ > 0)
    for (const int32_t id : init.end_tokens)
      if (known(id)) end_tokens_.push_back(id);
  advance(init.sampled);
}

// A prompt may be most of the vocabulary: not one by one.
void SamplerState::add_prompt(std::span<const int32_t> prompt) {
  std::vector<uint8_t> seen(size_t(vocab_), 0);
  for (const int32_t id : prompt)
    if (known(id)) seen[size_t(id)] = 1;
  for (int32_t id = 0; id < vocab_; id++)
    if (seen[size_t(id)]) entries_.push_back({.id = id, .in_prompt = true});
}

void SamplerState::add_biases(std::vector<std::pair<int32_t, float>> biases) {
  std::sort(biases.begin(), biases.end());  // sums must not depend on the order of the list
  for (const auto& [id, bias] : biases)
    if (known(id)) entry(id).bias += bias <= kBanBias ? kNegativeInfinity : bias;
}

void SamplerState::advance(std::span<const int32_t> tokens) {
  sampled_tokens_ += int64_t(tokens.size());
  if (!penalises_) return;
  for (const int32_t id : tokens)
    if (known(id)) entry(id).sampled++;
}

void SamplerState::adjust(const float* logits, std::span<const int32_t> ahead, RowScan& row) const {
  for (const Entry& e : entries_) row.set(e.id, adjusted(logits[e.id], e));
  if (penalises_)
    for (const int32_t id : ahead) {  // one that repeats is set again, to the same value
      if (!known(id)) continue;
      Entry e = entry_or_new(id);
      e.sampled += uint32_t(std::count(ahead.begin(), ahead.end(), id));
      row.set(id, adjusted(logits[id], e));
    }
  if (sampled_tokens_ + int64_t(ahead.size()) < min_tokens_)
    for (const int32_t id : end_tokens_) row.set(id, kNegativeInfinity);
}

float SamplerState::adjusted(float logit, const Entry& e) const {
  if (e.bias == kNegativeInfinity) return kNegativeInfinity;
  float x = logit + e.bias;
  if (e.in_prompt || e.sampled > 0) {
    // What the sign asks for, without a branch on it that could not be predicted (half the time of a long prompt).
    const float divided = x / repetition_, multiplied = x * repetition_;
    x = repetition_ > 1.0f ? std::min(divided, multiplied) : std::max(divided, multiplied);
  }
  if (e.sampled > 0) {
    x -= frequency_ * float(e.sampled);
    x -= presence_;
  }
  return x;
}

SamplerState::Entry SamplerState::entry_or_new(int32_t id) const {
  const auto found = std::lower_bound(entries_.begin(), entries_.end(), id, before);
  return found != entries_.end() && found->id == id ? *found : Entry{.id = id};
}

SamplerState::Entry& SamplerState::entry(int32_t id) {
  auto found = std::lower_bound(entries_.begin(), entries_.end(), id, before);
  if (found == entries_.end() || found->id != id) found = entries_.insert(found, {.id = id});
  return *found;
}

}  // namespace freetoken
