// A sublayer: one mixer or feed-forward network, and how it reads and writes the residual stream.
#pragma once
#include <vector>

#include "spec/attention_spec.h"
#include "spec/linear_attention_spec.h"
#include "spec/moe_spec.h"

namespace freetoken {

// Memory looked up by token id. kPerLayer: row `token` of the model's table (ModelSpec::table), mixed with a projection of the
// embedding, gates the hidden state: proj(activation(gate x) * row). Weights gate [dim, hidden], proj [hidden, dim].
enum class TableMemoryKind { kPerLayer };
struct TableMemorySpec {
  TableMemoryKind kind = TableMemoryKind::kPerLayer;
  int dim = 0;
  GatedActivation activation;  // of the gate; there is no up matrix
};

enum class SublayerKind { kAttention, kLinearAttention, kMlp, kMoe, kTableMemory };

// kAdd: h = skip_scale * h + residual_scale * out. kPostNorm: the same, with the normalised input in place of h.
// kHyper: the streams of ModelSpec::hyper. kGated: a = sqrt(sigmoid(-w)(1 + b)), b = sigmoid(w), w = residual_gate / temperature:
// h = a h + b out, a at least sqrt(gate_eps). kNone: h = out.
enum class ResidualRule { kAdd, kPostNorm, kHyper, kGated, kNone };
enum class SublayerOutput { kResidual, kJoin };  // kJoin: added to the next sublayer's output, before that one's group_norm

struct SublayerSpec {
  SublayerKind kind = SublayerKind::kMlp;
  NormSpec pre_norm;
  NormSpec post_norm;
  float residual_scale = 1.0f;
  int input = -1;               // -1 = the residual stream; else an earlier sublayer of this layer: its input after its pre_norm
  SublayerOutput output = SublayerOutput::kResidual;
  NormSpec group_norm;          // of the output after what was joined to it
  int post_conv = 0;            // kernel of a causal depthwise convolution added to the output (weight post_conv), 0 = none
  ResidualRule residual = ResidualRule::kAdd;
  float skip_scale = 1.0f;
  float gate_temperature = 1.0f;
  float gate_eps = 0.0f;
  int kv_source = -1;           // attention: the layer whose keys and values are used, -1 = its own
  int index_source = -1;        // attention: the layer whose selection is used, -1 = its own
  int token_scope = 0;          // 0 = all tokens; N: only the last N tokens up to each row whose logits are wanted matter
  AttentionSpec attention;
  LinearAttentionSpec linear_attention;
  MlpSpec mlp;
  MoeSpec moe;
  TableMemorySpec table_memory;
};

struct LayerSpec {
  std::vector<SublayerSpec> sublayers;
  bool scale = false;           // the layer's output is multiplied by the one value of weight layers.L.scale
};

}  // namespace freetoken
