// Layers with a recurrent state of fixed size instead of a cache of keys and values.
#pragma once
#include <vector>

#include "spec/attention_spec.h"

namespace freetoken {

// kGdn (gated delta net) and kKda (Kimi delta attention): a causal convolution and SiLU of q, k, v; q and k divided by
//   sqrt(sum of squares + 1e-6), q also by sqrt(k_dim); a delta rule with decay exp(-exp(a_log) * softplus(a + dt_bias)) per head
//   (kGdn) or per element of a head's key (kKda, see decay_bound); the output is normed, then gated.
// kLightning: SiLU of q, k, v; the state decays by exp(-decay[h]) per token.
// kMamba2: q = C, k = B (k_heads groups of k_dim), v = x (v_heads of v_dim), a convolution of all three, D skip.
// kShortConv: out(C * conv(B * x)), all of the hidden size.
enum class LinearAttentionKind { kGdn, kKda, kLightning, kMamba2, kShortConv };

// Weights q, k, v, o, {q,k,v}_conv [n, conv_kernel], norm, gate, and
//   kGdn: a, b [v_heads, hidden], a_log, dt_bias [v_heads];  kKda: b, decay or decay_a, decay_b, a_log, dt_bias [heads * k_dim]
//   kMamba2: dt [v_heads, hidden], a_log, dt_bias, d [v_heads], {q,k,v}_conv_bias;  kShortConv: b, c, x, o [hidden, hidden], conv
struct LinearAttentionSpec {
  LinearAttentionKind kind = LinearAttentionKind::kGdn;
  int k_heads = 0;
  int v_heads = 0;           // a multiple of k_heads: heads of one group share q and k
  int k_dim = 0;             // per head
  int v_dim = 0;             // per head
  int conv_kernel = 0;
  bool conv_bias = false;
  bool bias = false;         // of the projections
  float beta_scale = 1.0f;   // kGdn, kKda: beta = beta_scale * sigmoid(b)
  float decay_bound = 0.0f;  // kKda: decay = decay_bound * sigmoid(exp(a_log) * g) where < 0, else -exp(a_log) * softplus(g)
  int decay_rank = 0;        // kKda: g from two matrices through this many values, 0 = from one
  int gate_rank = 0;         // the output gate from gate_a, gate_b through this many values, 0 = from one matrix
  GateActivation gate_activation = GateActivation::kSilu;
  NormSpec norm;             // of the output: over a head's v_dim (kGdn, kKda) or over all heads (group: part by part)
  bool gate_before_norm = false;
  std::vector<float> decay;  // kLightning: v_heads rates
  float dt_min = 0.0f;       // kMamba2: softplus(dt + dt_bias) is kept within dt_min and dt_max
  float dt_max = 0.0f;       // 0 = no upper limit
};

}  // namespace freetoken
