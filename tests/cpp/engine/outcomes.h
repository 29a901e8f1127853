// Requests of many kinds, and what it means for two runs of one to have come out the same: to the bit.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "engine/tiny_engine.h"

namespace freetoken::testing {

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || !std::memcmp(a.data(), b.data(), a.size() * sizeof(float)));
}
inline bool same(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }
inline bool same(const std::vector<TokenLogprob>& a, const std::vector<TokenLogprob>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const TokenLogprob& x, const TokenLogprob& y) {
    return x.token == y.token && (same(x.logprob, y.logprob) || (std::isnan(x.logprob) && std::isnan(y.logprob))) &&
           x.top == y.top;
  });
}

inline void expect_same(const Outcome& a, const Outcome& b, const std::string& what) {
  EXPECT_EQ(a.tokens, b.tokens) << what;
  EXPECT_EQ(a.text, b.text) << what;
  EXPECT_EQ(a.finish, b.finish) << what;
  EXPECT_EQ(a.stop_match, b.stop_match) << what;
  EXPECT_TRUE(same_bits(a.logits, b.logits)) << what;
  EXPECT_TRUE(same(a.logprobs, b.logprobs)) << what;
  EXPECT_TRUE(same(a.prompt_logprobs, b.prompt_logprobs)) << what;
  EXPECT_EQ(a.prompt_tokens, b.prompt_tokens) << what;
}

inline std::vector<Request> assorted_requests(std::mt19937& rng) {
  std::vector<Request> requests;
  for (int i = 0; i < 14; i++) {
    static constexpr int kLengths[] = {1, 3, 64, 65, 20, 130, 63, 7, 300, 31, 2, 90, 128, 40};
    Request r = make_request(random_prompt(kLengths[i], rng), i == 5 ? 0 : 1 + int(rng() % 30),
                             i % 3 ? 0.5f + 0.25f * float(i % 5) : 0.0f);
    r.sampling.seed = 1000 + uint64_t(i);
    if (i % 4 == 1) r.sampling.top_k = 20;
    if (i % 4 == 2) r.sampling.top_p = 0.9f;
    r.logits = i % 3 == 0 ? LogitsMode::kSampled : i % 3 == 1 ? LogitsMode::kNone : LogitsMode::kAll;
    r.logprobs = i % 2 ? 3 : -1;
    r.prompt_logprobs = i % 4 == 3 || i == 5;
    r.emit_special_tokens = i % 5 == 0;
    if (i == 4) r.stop = {"a", "zz"};
    if (i % 5 == 2) r.sampling.presence_penalty = 0.5f, r.sampling.frequency_penalty = 0.3f;
    if (i % 5 == 3) r.sampling.repetition_penalty = 1.3f, r.sampling.min_p = 0.02f;
    if (i % 7 == 6) r.min_tokens = r.max_tokens / 2, r.sampling.logit_bias = {{3, -100.0f}, {5, 2.0f}};
    requests.push_back(std::move(r));
  }
  return requests;
}

}  // namespace freetoken::testing
