// From one row of fp32 logits to a token and its log-probabilities.
//
// Order of work: mask -> temperature -> top-k -> top-p -> draw. Greedy is the exact argmax. Ties go to the lowest id
// everywhere. All arithmetic has one fixed order, so a row's outcome depends on neither threads nor ISA level.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "sample/candidates.h"
#include "sample/row_scan.h"

namespace freetoken {

// A request's settings, resolved: the seed is always there.
struct SampleParams {
  float temperature = 1.0f;  // >= 0, finite; 0 = argmax
  int top_k = 0;             // <= 0 = off; more than the vocabulary = off
  float top_p = 1.0f;        // 0..1; 0 = argmax, 1 = off
  uint64_t seed = 0;

  bool greedy() const { return temperature < 0x1p-126f || top_p <= 0.0f || top_k == 1; }
};

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

  // The token at `position` (of the sequence, prompt included) of the request's sample_index-th sequence.
  // logits: vocab fp32, not changed; NaN counts as -inf. Returns -1 when no usable logit is above -inf: the row is broken.
  int32_t sample(const float* logits, const SampleParams& params, uint32_t position, uint32_t sample_index);

  // Of the raw distribution: no temperature, no filter, softmax over all rows of the output matrix.
  // top_n in [0, kMaxTopLogprobs] most likely usable ids. token in [0, vocab).
  // A broken row gives NaN and an empty list.
  RowLogprobs logprobs(const float* logits, int32_t token, int top_n);

 private:
  // A logit that at least k usable ids reach, if there are as many.
  float kth_bound(int k);
  // candidates_ = usable ids with a logit of at least `bound`.
  void gather(float bound);
  // candidates_ = the nucleus of the whole row.
  void gather_nucleus(float top_p, float inv_temperature);
  int32_t draw_row(float u, float inv_temperature);

  RowScan scan_;
  Candidates candidates_;
  std::vector<float> bounds_;
};

}  // namespace freetoken
