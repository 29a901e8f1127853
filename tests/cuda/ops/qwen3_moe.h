// A tiny qwen3_moe.
#pragma once
#include "model/tiny_spec.h"

namespace freetoken::testing {

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

}  // namespace freetoken::testing
