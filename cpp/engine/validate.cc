#include "engine/validate.h"

#include <cmath>
#include <string>

#include "text/stop_matcher.h"

namespace freetoken {
namespace {

constexpr int kMaxLogprobs = 1024;
constexpr int kMaxChoices = 128;
constexpr int64_t kMaxTimeoutUs = int64_t(1) << 50;  // 35 years: sums of clock and timeout stay far from overflow
constexpr int64_t kMaxPromptLogits = int64_t(1) << 28;  // values, 1 GiB of fp32

std::string text(double value) {
  std::string s = std::to_string(value);
  return s;
}

// Finite and in [low, high].
Status in_range(const char* name, float value, float low, float high) {
  if (value >= low && value <= high) return {};
  return InvalidArgument(std::string(name) + " is " + text(value) + ", it must be in " + text(low) + ".." + text(high));
}

Status validate_sampling(const SamplingParams& s, int vocab) {
  if (!(s.temperature >= 0.0f) || std::isinf(s.temperature))
    return InvalidArgument("temperature is " + text(s.temperature) + ", it must be a finite number >= 0");
  FT_RETURN_IF_ERROR(in_range("top_p", s.top_p, 0, 1));
  FT_RETURN_IF_ERROR(in_range("min_p", s.min_p, 0, 1));
  FT_RETURN_IF_ERROR(in_range("presence_penalty", s.presence_penalty, -2, 2));
  FT_RETURN_IF_ERROR(in_range("frequency_penalty", s.frequency_penalty, -2, 2));
  if (!(s.repetition_penalty > 0.0f) || std::isinf(s.repetition_penalty))
    return InvalidArgument("repetition_penalty is " + text(s.repetition_penalty) + ", it must be a finite number above 0");
  if (s.top_k < 0) return InvalidArgument("top_k is " + std::to_string(s.top_k) + ", it must be 0 (off) or more");
  for (const auto& [id, bias] : s.logit_bias) {
    if (id < 0 || id >= vocab)
      return InvalidArgument("logit_bias names token id " + std::to_string(id) + ", the vocabulary is 0.." +
                             std::to_string(vocab - 1));
    if (!std::isfinite(bias))
      return InvalidArgument("logit_bias of token id " + std::to_string(id) + " is not a finite number");
  }
  return {};
}

}  // namespace

Status validate_request(const Request& r, const RequestLimits& limits) {
  const int64_t prompt = int64_t(r.prompt.size());
  if (prompt == 0) return InvalidArgument("prompt is empty: give at least one token");
  for (int32_t id : r.prompt)
    if (id < 0 || id >= limits.vocab)
      return InvalidArgument("prompt holds token id " + std::to_string(id) + ", the vocabulary is 0.." +
                             std::to_string(limits.vocab - 1));
  if (r.max_tokens < 0) return InvalidArgument("max_tokens is " + std::to_string(r.max_tokens) + ", it must be 0 or more");
  if (r.max_tokens == 0 && !r.prompt_logprobs && r.logits != LogitsMode::kAll)
    return InvalidArgument("max_tokens is 0: nothing would be computed; ask for prompt log-probabilities, or for a token");
  if (prompt > limits.max_sequence_tokens || prompt + r.max_tokens > limits.max_sequence_tokens)
    return InvalidArgument("prompt is too long: " + std::to_string(prompt) + " tokens + " + std::to_string(r.max_tokens) +
                           " to generate > " + std::to_string(limits.max_sequence_tokens) + " maximum");
  FT_RETURN_IF_ERROR(validate_sampling(r.sampling, limits.vocab));
  if (r.n < 1 || r.n > kMaxChoices)
    return InvalidArgument("n is " + std::to_string(r.n) + ", it must be in 1.." + std::to_string(kMaxChoices));
  if (r.n > 1 && r.max_tokens == 0) 
    return InvalidArgument("n is " + std::to_string(r.n) + " but max_tokens is 0: there are no choices to make");
  if (r.min_tokens < 0 || r.min_tokens > r.max_tokens)
    return InvalidArgument("min_tokens is " + std::to_string(r.min_tokens) + ", it must be in 0..max_tokens (" +
                           std::to_string(r.max_tokens) + ")");
  for (int32_t id : r.stop_token_ids)
    if (id < 0 || id >= limits.vocab)
      return InvalidArgument("stop_token_ids holds " + std::to_string(id) + ", the vocabulary is 0.." +
                             std::to_string(limits.vocab - 1));
  if (r.timeout_us < 0 || r.timeout_us > kMaxTimeoutUs)
    return InvalidArgument("timeout is " + std::to_string(r.timeout_us) + " us, it must be 0 (none) or positive");
  if (r.logprobs < -1 || r.logprobs > kMaxLogprobs)
    return InvalidArgument("logprobs is " + std::to_string(r.logprobs) + ", at most " + std::to_string(kMaxLogprobs));
  if (r.logits == LogitsMode::kAll && prompt * limits.vocab > kMaxPromptLogits)
    return InvalidArgument("logits of all " + std::to_string(prompt) + " positions of " + std::to_string(limits.vocab) +
                           " values are more than 1 GiB");
  return validate_stop_strings(r.stop);
}

}  // namespace freetoken
