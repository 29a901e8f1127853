// Small ModelSpecs for tests.
#pragma once
#include <cmath>
#include <string>

#include "spec/model_spec.h"

namespace freetoken::testing {

inline RopeTable make_rope(int rotary_dim, bool interleaved = false, int offset = 0) {
  RopeTable rope{.interleaved = interleaved, .offset = offset};
  for (int i = 0; i < rotary_dim / 2; i++) rope.inv_freq.push_back(float(std::pow(1e4, -2.0 * i / rotary_dim)));
  return rope;
}

inline SublayerSpec make_attention(int q_heads, int kv_heads, int qk_dim, int v_dim, const NormSpec& norm) {
  SublayerSpec s;
  s.kind = SublayerKind::kAttention;
  s.pre_norm = norm;
  s.attention.q_heads = q_heads, s.attention.kv_heads = kv_heads, s.attention.qk_dim = qk_dim,
  s.attention.v_dim = v_dim;
  s.attention.rope = 0;
  s.attention.scale = 1.0f / std::sqrt(float(qk_dim));
  return s;
}
inline SublayerSpec make_mlp(int inner, const NormSpec& norm) {
  SublayerSpec s;
  s.kind = SublayerKind::kMlp;
  s.pre_norm = norm;
  s.mlp.inner = inner;
  return s;
}
inline SublayerSpec make_moe(int experts, int per_token, int inner, const NormSpec& norm) {
  SublayerSpec s;
  s.kind = SublayerKind::kMoe;
  s.pre_norm = norm;
  s.moe.experts = experts, s.moe.experts_per_token = per_token, s.moe.inner = inner;
  return s;
}

// Dense, grouped heads: what llama is.
inline ModelSpec llama_spec() {
  const NormSpec rms{.kind = NormKind::kRms, .eps = 1e-5f};
  ModelSpec spec;
  spec.hidden = 64, spec.vocab = 131, spec.max_positions = 1024;
  spec.final_norm = rms;
  spec.rope_tables = {make_rope(16)};
  for (int l = 0; l < 2; l++) spec.layers.push_back({{make_attention(6, 2, 16, 16, rms), make_mlp(96, rms)}});
  return spec;
}

// Experts, head norms, a window in one layer and a dense layer between: what qwen3_moe is, and a little more.
inline ModelSpec moe_spec() {
  const NormSpec rms{.kind = NormKind::kRms, .eps = 1e-6f};
  ModelSpec spec = llama_spec();
  spec.layers.clear();
  for (int l = 0; l < 3; l++) {
    SublayerSpec attention = make_attention(4, 2, 32, 16, rms), moe = make_moe(8, 2, 64, rms);
    attention.attention.q_norm = attention.attention.k_norm = rms;
    if (l == 1) attention.attention.type = AttentionType::kWindow, attention.attention.window = 40;
    moe.moe.normalise = l == 0;
    moe.moe.scaling = l == 0 ? 1.0f : 1.5f;
    spec.layers.push_back({{attention, l == 1 ? make_mlp(96, rms) : moe}});
  }
  spec.rope_tables = {make_rope(32)};
  return spec;
}

// Windows of two lengths and no layer that sees everything: pages are given back while a sequence runs.
inline ModelSpec window_spec() {
  ModelSpec spec = llama_spec();
  for (size_t l = 0; l < spec.layers.size(); l++) {
    AttentionSpec& attention = spec.layers[l].sublayers[0].attention;
    attention.type = AttentionType::kWindow, attention.window = l == 0 ? 24 : 100;
  }
  return spec;
}

// Everything else the forward pass has: layer norms with biases, all biases, scales, softcap, tied embedding, a partial
// interleaved rotation, dimensions that are no multiple of anything, one expert per token.
inline ModelSpec odd_spec() {
  const NormSpec layer{.kind = NormKind::kLayer, .has_bias = true, .eps = 1e-5f};
  const NormSpec plus{.kind = NormKind::kRms, .plus_one = true, .eps = 1e-5f};
  ModelSpec spec;
  spec.hidden = 50, spec.vocab = 77, spec.max_positions = 700;
  spec.embed_scale = 3.0f, spec.logit_scale = 0.8f, spec.logit_softcap = 4.0f;
  spec.tied_embedding = true, spec.lm_head_bias = true;
  spec.final_norm = plus;
  spec.rope_tables = {make_rope(12, true, 4)};
  spec.rope_tables[0].attention_factor = 1.1f;
  SublayerSpec attention = make_attention(3, 1, 20, 32, layer), mlp = make_mlp(41, plus),
               moe = make_moe(5, 1, 36, layer);
  attention.attention.qkv_bias = attention.attention.o_bias = true;
  attention.attention.q_norm = plus;
  attention.residual_scale = 0.7f;
  mlp.mlp.bias = true;
  SublayerSpec unrotated = attention;
  unrotated.attention.rope = -1;
  spec.layers = {{{attention, mlp}}, {{unrotated, moe, mlp}}};
  return spec;
}

}  // namespace freetoken::testing
