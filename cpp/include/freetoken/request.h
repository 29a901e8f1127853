// Request and Event: what goes into the engine and what comes out.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "freetoken/status.h"

namespace freetoken {

using RequestId = uint64_t;

struct SamplingParams {
  float temperature = 1.0f;  // >= 0; 0 = greedy (exact argmax, ties to the lowest id)
  int top_k = 0;             // 0 = off
  float top_p = 1.0f;        // 0..1; 0 = argmax
  float min_p = 0.0f;        // 0..1; 0 = off: what is less likely than min_p times the most likely token is not drawn
  float presence_penalty = 0.0f;    // -2..2, subtracted once from what was generated
  float frequency_penalty = 0.0f;   // -2..2, subtracted per occurrence in what was generated
  float repetition_penalty = 1.0f;  // > 0: divides positive logits of prompt and generated tokens, multiplies negative ones
  std::vector<std::pair<int32_t, float>> logit_bias;  // added to the logits; -100 and below bans the token
  std::optional<uint64_t> seed;  // absent: a fresh one per request
};

enum class LogitsMode { kNone, kSampled, kAll };  // which fp32 rows the events carry; kAll = every prompt position too

struct Request {
  std::vector<int32_t> prompt;   // >= 1 token
  int max_tokens = 16;           // >= 0; 0 only with prompt_logprobs or LogitsMode::kAll
  int min_tokens = 0;            // EOS, stop tokens are not drawn before so many
  int n = 1;                     // choices, each with its own draws; events name theirs
  int priority = 0;              // lower runs earlier
  int64_t timeout_us = 0;        // from submit to the last token; 0 = none
  SamplingParams sampling;
  std::vector<std::string> stop;           // UTF-8, none empty; the match and what follows are not emitted
  std::vector<int32_t> stop_token_ids;     // end the request like EOS, with finish kStop
  bool ignore_eos = false;
  bool emit_special_tokens = false;        // control tokens appear in the text
  int logprobs = -1;             // -1 none; n >= 0: the token's own and the n most likely, of the raw distribution
  bool prompt_logprobs = false;  // the same for prompt tokens 1..n-1
  LogitsMode logits = LogitsMode::kNone;
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0.0f;                            // NaN for the first prompt token, which has none
  std::vector<std::pair<int32_t, float>> top;      // descending, ties to the lowest id
};

enum class FinishReason { kNone, kStop, kLength, kCancelled, kTimeout, kError };

// About one choice of one request. A request is over when each of its n choices had an event with a finish reason.
struct Event {
  RequestId request = 0;
  int choice = 0;
  std::vector<int32_t> tokens;           // sampled in this step, EOS included
  std::string text;                      // whole UTF-8 characters, stop strings withheld
  std::vector<TokenLogprob> logprobs;    // one per token, when asked for
  std::vector<TokenLogprob> prompt_logprobs;  // one per prompt token, once, in choice 0's event that ends the prefill
  std::vector<float> logits;             // rows x vocab fp32, in position order, when asked for
  FinishReason finish = FinishReason::kNone;
  std::string stop_match;                // the stop string that ended the request; empty for a token or a limit
  Status error;                          // with kError
  int prompt_tokens = 0;                 // usage so far
  int cached_tokens = 0;                 // of the prompt, from the prefix cache when the request was first admitted
  int completion_tokens = 0;             // of this choice
};

// Called on the engine thread; must return quickly, not throw, and not call back into the engine (except cancel).
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void on_event(Event&& event) = 0;
  virtual void on_step_end() {}  // after the events of one step: wake the consumer once
};

}  // namespace freetoken
