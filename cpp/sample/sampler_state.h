// What a request's history and settings do to its logits: bias, bans and penalties of one sampled sequence.
//
// An adjusted logit is, in fp32 and in this order (each step rounded):
//   x + bias                                                        logit_bias; -100 and less is a ban: -inf
//   x > 0 ? x / repetition_penalty : x * repetition_penalty         for ids of the prompt and of sampled tokens
//   x - frequency_penalty * times sampled                           for sampled tokens
//   x - presence_penalty                                            for sampled tokens
//   -inf                                                            for end tokens before min_tokens were sampled
// Repetition: Keskar et al., "CTRL", 2019, with the rule for signs of transformers and vLLM. Presence and frequency:
// the formula of the OpenAI API. NaN stays NaN, which counts as -inf.
#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "ops/sampling.h"
#include "sample/row_scan.h"
#include "sample/sample_params.h"

namespace freetoken {

constexpr float kBanBias = -100.0f;  // a logit bias from here down bans its token

// Rows are drawn from several threads at once; only advance() changes it.
class SamplerState {
 public:
  // Numbers in init.params are finite, repetition_penalty is above 0. Ids that are no ids of `vocab` have no effect.
  // Biases of one id add up, and the order of the list does not matter.
  SamplerState(const SamplerInit& init, int vocab);

  // These were sampled, and accepted.
  void advance(std::span<const int32_t> tokens);

  // Sets the logits of `row` (loaded from `logits`) that differ for the position after the history and `ahead`: tokens
  // assumed to have been sampled. Takes about 8 ns (vocabulary of 150k) per distinct id of bias and history that a
  // setting asks about, and nothing without such a setting.
  void adjust(const float* logits, std::span<const int32_t> ahead, RowScan& row) const;

  const SampleParams& params() const { return params_; }
  int64_t sampled_tokens() const { return sampled_tokens_; }

 private:
  struct Entry {
    int32_t id = 0;
    float bias = 0.0f;       // -inf = banned
    uint32_t sampled = 0;    // times
    bool in_prompt = false;  // known only where the repetition penalty asks for it
  };
  static bool before(const Entry& entry, int32_t id) { return entry.id < id; }

  float adjusted(float logit, const Entry& entry) const;
  void add_biases(std::vector<std::pair<int32_t, float>> biases);
  void add_prompt(std::span<const int32_t> prompt);
  Entry entry_or_new(int32_t id) const;
  Entry& entry(int32_t id);
  bool known(int32_t id) const { return uint32_t(id) < uint32_t(vocab_); }

  SampleParams params_;
  int vocab_;
  float presence_, frequency_, repetition_;
  bool penalises_;                    // any of the three
  int64_t min_tokens_, sampled_tokens_ = 0;
  std::vector<int32_t> end_tokens_;   // empty where min_tokens is 0
  std::vector<Entry> entries_;        // one per id, ascending, so that a row is read and written in order
};

}  // namespace freetoken
