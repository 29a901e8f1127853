// ActiveRequest: what the engine keeps of one request between submit and its last event.
#pragma once
#include <memory>
#include <vector>

#include "freetoken/request.h"
#include "sched/sequence.h"
#include "text/text_stream.h"

namespace freetoken {

struct ActiveRequest {
  ActiveRequest(Request r, const Vocab& vocab)
      : request(std::move(r)), text(vocab, request.stop, request.emit_special_tokens) {}

  Request request;
  uint64_t seed = 0;
  Sequence* sequence = nullptr;  // owned by the scheduler
  TextStream text;
  Event event;                   // being filled in this step
  bool touched = false;          // `event` has something to say
  // Collected over the prefill's steps, sent with the event that ends it.
  std::vector<TokenLogprob> prompt_logprobs;
  std::vector<float> prompt_logits;

  bool wants_prompt_rows() const { return request.prompt_logprobs || request.logits == LogitsMode::kAll; }
};

}  // namespace freetoken
