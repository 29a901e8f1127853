// A tiny qwen3_moe in several formats, its twin for the CPU, and requests to engines on both.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <initializer_list>
#include <random>
#include <vector>

#include "cuda_device.h"
#include "engine/tiny_engine.h"
#include "model/tiny_spec.h"
#include "model/tiny_weights.h"
#include "ops/plain.h"

namespace freetoken::testing {

constexpr int kTokens = 32;

// What qwen3_moe is: grouped queries, head norms, every layer with experts, weights normalised.
inline ModelSpec qwen3_moe_spec() {
  const NormSpec rms{.kind = NormKind::kRms, .eps = 1e-6f};
  ModelSpec spec = llama_spec();
  spec.layers.clear();
  for (int l = 0; l < 2; l++) {
    SublayerSpec attention = make_attention(4, 2, 32, 32, rms), moe = make_moe(8, 2, 64, rms);
    attention.attention.q_norm = attention.attention.k_norm = rms;
    moe.moe.normalise = true;
    spec.layers.push_back({{attention, moe}});
  }
  spec.rope_tables = {make_rope(32)};
  return spec;
}

inline TinyWeights weights_in(const ModelSpec& spec, WeightFormat format, uint32_t seed) {
  return random_weights(spec, seed, [=](const std::string& name) {
    return name.find("router") != std::string::npos ? WeightFormat::kF32 : format;
  });
}

// The same weights in bf16, exactly: q4_0 scales are cut to 4 bits, so that a scale times a code of 4 bits has 8. The CPU rounds
// the inputs of q4_0 matrices to int8, which is coarser than the bf16 of CudaOps and makes a router of random weights choose
// others; of bf16 matrices it rounds them as CudaOps does.
inline TinyWeights cut_scales(TinyWeights weights, TinyWeights* in_bf16) {
  for (const auto& [name, from] : weights.all()) {
    TestWeight w = from, twin = from;
    if (w.format == WeightFormat::kQ4_0) {
      const size_t row_bytes = source_row_bytes(w.format, w.k);
      for (size_t at = 0; at < w.source.size(); at += 18) w.source[at] &= 0x80;  // the low byte of an f16 scale
      for (int i = 0; i < w.n; i++) decode_row(w.format, w.k, w.source.data() + size_t(i) * row_bytes, w.values.data() + size_t(i) * size_t(w.k));
      twin = w;
      twin.format = WeightFormat::kBF16;
      twin.source.resize(w.values.size() * 2);
      for (size_t i = 0; i < w.values.size(); i++) {
        const uint16_t h = f32_to_bf16(w.values[i]);
        EXPECT_EQ(bf16_to_f32(h), w.values[i]) << name;
        std::memcpy(twin.source.data() + 2 * i, &h, 2);
      }
      w.packed_form = twin.packed_form = nullptr;
    }
    in_bf16->add(name, twin);
    weights.add(name, w);
  }
  return weights;
}

struct Case {
  const char* name;
  WeightFormat format;
  uint32_t seed;  // with which no router has a near tie that an error of 1e-3 decides
};
const Case kCases[] = {{"bf16", WeightFormat::kBF16, 6}, {"q4_0", WeightFormat::kQ4_0, 6}};

class CudaModel : public ::testing::TestWithParam<Case> {
 protected:
  ModelSpec spec = qwen3_moe_spec();
  TinyWeights cpu_weights, weights = cut_scales(weights_in(spec, GetParam().format, GetParam().seed), &cpu_weights);
};

inline std::vector<std::vector<int32_t>> prompts(std::initializer_list<int> lengths, uint32_t seed = 7) {
  std::mt19937 rng(seed);
  std::vector<std::vector<int32_t>> all;
  for (const int length : lengths) all.push_back(random_prompt(length, rng));
  return all;
}

inline Request greedy_with_logits(std::vector<int32_t> prompt, int tokens = kTokens) {
  Request r = make_request(std::move(prompt), tokens);
  r.logits = LogitsMode::kSampled;
  r.prompt_logprobs = true;
  return r;
}

inline std::vector<Outcome> run_all(TinyEngine& engine, const std::vector<Request>& requests) {
  std::vector<RequestId> ids;
  for (const Request& r : requests) ids.push_back(engine.submit(r));
  std::vector<Outcome> outcomes;
  for (const RequestId id : ids) {
    outcomes.push_back(engine.sink->wait(id));
    EXPECT_TRUE(outcomes.back().error.ok()) << outcomes.back().error.message();
  }
  return outcomes;
}

inline void expect_same(const Outcome& got, const Outcome& expected, const char* what) {
  EXPECT_EQ(got.tokens, expected.tokens) << what;
  EXPECT_EQ(got.finish, expected.finish) << what;
  EXPECT_TRUE(same_bits(got.logits, expected.logits)) << what;
}

}  // namespace freetoken::testing
