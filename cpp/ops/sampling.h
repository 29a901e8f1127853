// What sample() gets and gives for one row of logits.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

namespace freetoken {

struct SampleRow {
  int32_t logits_row = 0;
  int32_t target = -1;     // >= 0: draw nothing, report this token's log-probability (prompt log-probabilities)
  float temperature = 0;   // 0 = argmax
  int32_t top_k = 0;       // 0 = off
  float top_p = 1;         // 0 = argmax
  uint64_t seed = 0;
  int32_t position = 0;    // Philox counter, with sample_index
  int32_t sample_index = 0;
  int32_t logprobs = -1;   // -1 = none; n = the token's own and the n most likely
};

struct SampleResult {
  int32_t token = 0;       // the target where one was given
  float logprob = 0;       // of the raw distribution; 0 when not asked for
  std::vector<std::pair<int32_t, float>> top;
};

}  // namespace freetoken
