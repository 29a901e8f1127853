// ActiveRequest: what the engine keeps of one request between submit and its last event.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "freetoken/request.h"
#include "sample/draft_gain.h"
#include "sample/ngram_draft.h"
#include "sched/sequence.h"
#include "text/text_stream.h"

namespace freetoken {

struct ActiveRequest;

// One choice: a sequence of the scheduler, and what of it goes out.
struct Choice : Sequence {
  Choice(ActiveRequest& request, int index, const Vocab& vocab);

  ActiveRequest& owner;
  TextStream text;
  Event event;                   // being filled in this step
  bool touched = false;          // `event` has something to say
  bool prefilled = false;        // the prompt was computed once
  bool done = false;             // its last event is made
  std::unique_ptr<NgramDraft> drafter;  // from the end of the prefill on, when drafts are on
  DraftGain gain;
  // Choice 0 only: collected over the prefill's steps, sent with the event that ends it.
  std::vector<TokenLogprob> prompt_logprobs;
  std::vector<float> prompt_logits;
};

struct ActiveRequest {
  Request request;
  uint64_t seed = 0;
  int64_t deadline_us = 0;                        // 0 = none
  std::vector<int32_t> end_tokens;                // what ends the text: the model's EOS unless ignored, stop tokens
  std::vector<std::unique_ptr<Choice>> choices;
  int open_choices = 0;

  bool ends(int32_t token) const { return std::find(end_tokens.begin(), end_tokens.end(), token) != end_tokens.end(); }
  bool wants_prompt_rows() const { return request.prompt_logprobs || request.logits == LogitsMode::kAll; }
};

inline Choice::Choice(ActiveRequest& request, int index, const Vocab& vocab)
    : owner(request), text(vocab, request.request.stop, request.request.emit_special_tokens) {
  choice = index;
}

}  // namespace freetoken
