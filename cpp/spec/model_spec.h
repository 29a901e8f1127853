// ModelSpec: what a network is, as data. It never says which family it came from.
//
// A model is an embedding, a list of layers and heads. A layer is an ordered list of 1-6 sublayers, each reading the
// residual stream (or the tap of an earlier sublayer) and writing back to it. Python's config/<family>.py makes the JSON
// form; parse_model_spec reads it strictly: an unknown field, a missing one or an absurd number is an error naming its path.
//
// Canonical tensor names (L layer, S sublayer index within the layer, E expert):
//   embed | final_norm | lm_head | lm_head_bias | layers.L.S.pre_norm | layers.L.S.post_norm
//   attention  layers.L.S.{q,k,v,o,q_bias,k_bias,v_bias,o_bias,q_norm,k_norm,sinks,gate}
//   mlp        layers.L.S.{gate,up,down,gate_bias,up_bias,down_bias}
//   moe        layers.L.S.{router,router_bias,selection_bias} layers.L.S.experts.E.{gate,up,down,...}
//              layers.L.S.shared.{gate,up,down} layers.L.S.shared_gate
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"

namespace freetoken {

enum class NormKind { kNone, kRms, kLayer };
struct NormSpec {
  NormKind kind = NormKind::kNone;
  bool plus_one = false;    // the weight is stored as w - 1
  bool has_weight = true;
  bool has_bias = false;
  float eps = 1e-6f;
};

enum class Activation { kSilu, kGelu, kGeluTanh, kRelu2, kSwigluOai };
struct GatedActivation {
  Activation kind = Activation::kSilu;
  float alpha = 1.0f;       // kSwigluOai: x * sigmoid(alpha x)
  float limit = 0.0f;       // clamp of gate and up, 0 = none
  float up_offset = 0.0f;   // kSwigluOai: (up + 1)
};

// Inverse frequencies are computed by the family parser (fp32, as the reference does), so every scaling scheme
// (llama3, yarn, linear, proportional) is one list here.
struct RopeTable {
  std::vector<float> inv_freq;   // rotary_dim / 2 values
  float attention_factor = 1.0f; // multiplies cos and sin
  bool interleaved = false;      // pairs (2i, 2i+1) instead of (i, i + rotary_dim/2)
  int offset = 0;                // first rotated element of a head
};

enum class AttentionType { kFull, kWindow };
struct AttentionSpec {
  AttentionType type = AttentionType::kFull;
  int q_heads = 0;
  int kv_heads = 0;
  int qk_dim = 0;           // per head
  int v_dim = 0;            // per head
  int window = 0;           // kWindow: keys seen, the query's own included
  int rope = -1;            // index into ModelSpec::rope_tables, -1 = no rotation
  float scale = 0.0f;       // of q.k
  float softcap = 0.0f;     // 0 = none
  bool sinks = false;
  bool qkv_bias = false;
  bool o_bias = false;
  NormSpec q_norm;          // per head over qk_dim
  NormSpec k_norm;
};

struct MlpSpec {
  int inner = 0;
  GatedActivation activation;
  bool bias = false;
};

enum class RouterScoring { kSoftmax, kSigmoid, kSoftmaxOfSelected };
struct MoeSpec {
  int experts = 0;
  int experts_per_token = 0;
  int inner = 0;
  RouterScoring scoring = RouterScoring::kSoftmax;
  bool normalise = false;   // selected weights divided by their sum
  float scaling = 1.0f;
  bool selection_bias = false;
  int groups = 1;
  int groups_per_token = 1;
  GatedActivation activation;
  int shared_inner = 0;     // 0 = no shared expert
};

enum class SublayerKind { kAttention, kLinearAttention, kMlp, kMoe, kTableMemory };
struct SublayerSpec {
  SublayerKind kind = SublayerKind::kMlp;
  NormSpec pre_norm;
  NormSpec post_norm;
  float residual_scale = 1.0f;
  AttentionSpec attention;
  MlpSpec mlp;
  MoeSpec moe;
};

struct LayerSpec {
  std::vector<SublayerSpec> sublayers;
};

struct ModelSpec {
  int hidden = 0;
  int vocab = 0;            // rows of embed and lm_head
  int max_positions = 0;
  float embed_scale = 1.0f;
  float logit_scale = 1.0f;
  float logit_softcap = 0.0f;
  bool tied_embedding = false;
  bool lm_head_bias = false;
  NormSpec final_norm;
  std::vector<RopeTable> rope_tables;
  std::vector<LayerSpec> layers;
};

Result<ModelSpec> parse_model_spec(const std::string& json);
std::string model_spec_to_json(const ModelSpec& spec);

}  // namespace freetoken
