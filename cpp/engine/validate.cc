#include "engine/validate.h"

#include <cmath>
#include <string>

#include "text/stop_matcher.h"

namespace freetoken {
namespace {

constexpr int kMaxLogprobs = 1024;
constexpr int64_t kMaxPromptLogits = int64_t(1) << 28;  // values, 1 GiB of fp32

std::string text(double value) {
  std::string s = std::to_string(value);
  return s;
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
  const SamplingParams& s = r.sampling;
  if (!(s.temperature >= 0.0f) || std::isinf(s.temperature))
    return InvalidArgument("temperature is " + text(s.temperature) + ", it must be a finite number >= 0");
  if (!(s.top_p >= 0.0f && s.top_p <= 1.0f)) return InvalidArgument("top_p is " + text(s.top_p) + ", it must be in 0..1");
  if (s.top_k < 0) return InvalidArgument("top_k is " + std::to_string(s.top_k) + ", it must be 0 (off) or more");
  if (r.logprobs < -1 || r.logprobs > kMaxLogprobs)
    return InvalidArgument("logprobs is " + std::to_string(r.logprobs) + ", at most " + std::to_string(kMaxLogprobs));
  if (r.logits == LogitsMode::kAll && prompt * limits.vocab > kMaxPromptLogits)
    return InvalidArgument("logits of all " + std::to_string(prompt) + " positions of " + std::to_string(limits.vocab) +
                           " values are more than 1 GiB");
  return validate_stop_strings(r.stop);
}

}  // namespace freetoken
