// What sample() gets and gives for one row of logits.
#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "freetoken/request.h"

namespace freetoken {

// What a device keeps of one sampled sequence, in a sampler slot, from open_sampler() on. The data pointed to is copied.
struct SamplerInit {
  const SamplingParams* params = nullptr;
  uint64_t seed = 0;
  int32_t sample_index = 0;               // Philox counter, with the position
  std::span<const int32_t> prompt;        // for the repetition penalty
  std::span<const int32_t> sampled;       // tokens that were sampled before (a resumed request)
  int32_t min_tokens = 0;                 // until so many were sampled ...
  std::span<const int32_t> end_tokens;    // ... none of these is
};

// One row to draw or to score. All of it is data of the step, not part of its shape (Ops).
struct SampleRow {
  int32_t logits_row = 0;
  int32_t slot = 0;        // sampler slot; unused with a target
  int32_t position = 0;    // of the token to draw in its sequence: the Philox counter
  int32_t target = -1;     // >= 0: draw nothing, report this token's log-probability (prompt log-probabilities)
  int32_t logprobs = -1;   // -1 = none; n = the token's own and the n most likely
  std::span<const int32_t> ahead;  // drafted tokens assumed to lie between the slot's history and this position
};

struct SampleResult {
  int32_t token = 0;       // the target where one was given; -1 when no token can be drawn (broken logits)
  float logprob = 0;       // of the raw distribution; 0 when not asked for
  std::vector<std::pair<int32_t, float>> top;
};

}  // namespace freetoken
