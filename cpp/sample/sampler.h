// From one row of fp32 logits to a token and its log-probabilities.
//
// Order of work: mask, bias, penalties, bans (SamplerState) -> temperature -> top-k -> top-p -> min-p -> draw. Each
// filter works on what the one before left: top-p keeps the fewest most likely ids that hold its share of that, min-p
// the ids at least min_p times as likely as the most likely one, a ratio of two weights that no filter changes. This is
// the order of transformers and SGLang; vLLM does min-p first (docs/numerics.md).
// Greedy is the exact argmax. Ties go to the lowest id everywhere. All arithmetic has one fixed order, so a row's
// outcome depends on neither threads nor ISA level.
#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "sample/candidates.h"
#include "sample/row_scan.h"
#include "sample/sample_params.h"
#include "sample/sampler_state.h"

namespace freetoken {

struct RowLogprobs {
  float token_logprob = 0.0f;
  std::vector<std::pair<int32_t, float>> top;  // descending, ties to the lowest id
};

constexpr int kMaxTopLogprobs = 1024;  // bound of RowLogprobs::top

// Scratch for one thread; rows of one vocabulary.
class Sampler {
 public:
  // usable[id] != 0: id may be sampled. Rows have usable.size() logits.
  explicit Sampler(const std::vector<uint8_t>& usable);

  int vocab() const { return scan_.vocab(); }

  // The token at `position` (of the sequence, prompt included) of the request's sample_index-th sequence, given that
  // the state's history and then `ahead` were sampled before it.
  // logits: vocab fp32, not changed; NaN counts as -inf. Returns -1 when no usable logit is above -inf: the row is
  // broken, or everything is banned.
  int32_t sample(const float* logits, const SamplerState& state, std::span<const int32_t> ahead, uint32_t position,
                 uint32_t sample_index);
  // The same without bias, bans and penalties.
  int32_t sample(const float* logits, const SampleParams& params, uint32_t position, uint32_t sample_index);

  // Of the raw distribution: no bias, penalty, temperature or filter; softmax over all rows of the output matrix.
  // top_n in [0, kMaxTopLogprobs] most likely usable ids. token in [0, vocab).
  // A broken row gives NaN and an empty list.
  RowLogprobs logprobs(const float* logits, int32_t token, int top_n);

 private:
  // A logit that at least k usable ids reach, if there are as many.
  float kth_bound(int k);
  // candidates_ = usable ids with a logit of at least `bound`.
  void gather(float bound);
  // From the row in scan_.
  int32_t draw(const SampleParams& params, uint32_t position, uint32_t sample_index);
  // candidates_ = the nucleus of the whole row.
  void gather_nucleus(float top_p, float inv_temperature);
  // candidates_ = the ids of the whole row that min-p keeps, and perhaps some that it does not.
  void gather_likely(const SampleParams& params);
  int32_t draw_row(float u, float inv_temperature);

  RowScan scan_;
  Candidates candidates_;
  std::vector<float> bounds_;
};

}  // namespace freetoken
