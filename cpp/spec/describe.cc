#include "spec/describe.h"

namespace freetoken::spec {
namespace {

constexpr const char* kNormKinds[] = {"none", "rms", "layer"};
constexpr const char* kActivations[] = {"silu", "gelu", "gelu_tanh", "relu2", "swiglu_oai"};
constexpr const char* kAttentionTypes[] = {"full", "window"};
constexpr const char* kScorings[] = {"softmax", "sigmoid", "softmax_of_selected"};
constexpr const char* kSublayerKinds[] = {"attention", "linear_attention", "mlp", "moe", "table_memory"};

}  // namespace

void describe(Fields& fields, NormSpec& norm) {
  Struct s(fields, norm);
  s.choice("kind", &NormSpec::kind, kNormKinds);
  s.flag("plus_one", &NormSpec::plus_one);
  s.flag("has_weight", &NormSpec::has_weight);
  s.flag("has_bias", &NormSpec::has_bias);
  s.real("eps", &NormSpec::eps, 0.0, 1.0);
}

void describe(Fields& fields, GatedActivation& activation) {
  Struct s(fields, activation);
  s.choice("kind", &GatedActivation::kind, kActivations);
  s.real("alpha", &GatedActivation::alpha, -kMaxFactor, kMaxFactor);
  s.real("limit", &GatedActivation::limit, 0.0, kMaxFactor);
  s.real("up_offset", &GatedActivation::up_offset, -kMaxFactor, kMaxFactor);
}

void describe(Fields& fields, RopeTable& rope) {
  Struct s(fields, rope);
  s.reals("inv_freq", &RopeTable::inv_freq, 0.0, kMaxFactor, kMaxHidden, Need::kRequired);
  s.real("attention_factor", &RopeTable::attention_factor, 0.0, kMaxFactor);
  s.flag("interleaved", &RopeTable::interleaved);
  s.integer("offset", &RopeTable::offset, 0, kMaxHidden);
}

void describe(Fields& fields, AttentionSpec& attention) {
  Struct s(fields, attention);
  s.choice("type", &AttentionSpec::type, kAttentionTypes);
  s.integer("q_heads", &AttentionSpec::q_heads, 1, kMaxHeads, Need::kRequired);
  s.integer("kv_heads", &AttentionSpec::kv_heads, 1, kMaxHeads, Need::kRequired);
  s.integer("qk_dim", &AttentionSpec::qk_dim, 1, kMaxHeads, Need::kRequired);
  s.integer("v_dim", &AttentionSpec::v_dim, 1, kMaxHeads, Need::kRequired);
  s.integer("window", &AttentionSpec::window, 0, kMaxPositions);
  s.integer("rope", &AttentionSpec::rope, -1, kMaxRopeTables - 1);
  s.real("scale", &AttentionSpec::scale, 1e-9, kMaxFactor, Need::kRequired);
  s.real("softcap", &AttentionSpec::softcap, 0.0, kMaxFactor);
  s.flag("sinks", &AttentionSpec::sinks);
  s.flag("qkv_bias", &AttentionSpec::qkv_bias);
  s.flag("o_bias", &AttentionSpec::o_bias);
  s.object("q_norm", &AttentionSpec::q_norm);
  s.object("k_norm", &AttentionSpec::k_norm);
}

void describe(Fields& fields, MlpSpec& mlp) {
  Struct s(fields, mlp);
  s.integer("inner", &MlpSpec::inner, 1, kMaxHidden, Need::kRequired);
  s.object("activation", &MlpSpec::activation);
  s.flag("bias", &MlpSpec::bias);
}

void describe(Fields& fields, MoeSpec& moe) {
  Struct s(fields, moe);
  s.integer("experts", &MoeSpec::experts, 1, kMaxExperts, Need::kRequired);
  s.integer("experts_per_token", &MoeSpec::experts_per_token, 1, kMaxExperts, Need::kRequired);
  s.integer("inner", &MoeSpec::inner, 1, kMaxHidden, Need::kRequired);
  s.choice("scoring", &MoeSpec::scoring, kScorings);
  s.flag("normalise", &MoeSpec::normalise);
  s.real("scaling", &MoeSpec::scaling, -kMaxFactor, kMaxFactor);
  s.flag("selection_bias", &MoeSpec::selection_bias);
  s.integer("groups", &MoeSpec::groups, 1, kMaxExperts);
  s.integer("groups_per_token", &MoeSpec::groups_per_token, 1, kMaxExperts);
  s.object("activation", &MoeSpec::activation);
  s.integer("shared_inner", &MoeSpec::shared_inner, 0, kMaxHidden);
}

void describe(Fields& fields, SublayerSpec& sublayer) {
  Struct s(fields, sublayer);
  s.choice("kind", &SublayerSpec::kind, kSublayerKinds, Need::kRequired);
  s.object("pre_norm", &SublayerSpec::pre_norm);
  s.object("post_norm", &SublayerSpec::post_norm);
  s.real("residual_scale", &SublayerSpec::residual_scale, -kMaxFactor, kMaxFactor);
  switch (sublayer.kind) {  // the other kinds' objects stay unknown fields
    case SublayerKind::kAttention: s.object("attention", &SublayerSpec::attention, Need::kRequired); break;
    case SublayerKind::kMlp: s.object("mlp", &SublayerSpec::mlp, Need::kRequired); break;
    case SublayerKind::kMoe: s.object("moe", &SublayerSpec::moe, Need::kRequired); break;
    case SublayerKind::kLinearAttention:
    case SublayerKind::kTableMemory: break;
  }
}

void describe(Fields& fields, LayerSpec& layer) {
  Struct s(fields, layer);
  s.list("sublayers", &LayerSpec::sublayers, 1, kMaxSublayers);
}

void describe(Fields& fields, ModelSpec& model) {
  Struct s(fields, model);
  s.integer("hidden", &ModelSpec::hidden, 1, kMaxHidden, Need::kRequired);
  s.integer("vocab", &ModelSpec::vocab, 1, kMaxVocab, Need::kRequired);
  s.integer("max_positions", &ModelSpec::max_positions, 1, kMaxPositions, Need::kRequired);
  s.real("embed_scale", &ModelSpec::embed_scale, -kMaxFactor, kMaxFactor);
  s.real("logit_scale", &ModelSpec::logit_scale, -kMaxFactor, kMaxFactor);
  s.real("logit_softcap", &ModelSpec::logit_softcap, 0.0, kMaxFactor);
  s.flag("tied_embedding", &ModelSpec::tied_embedding);
  s.flag("lm_head_bias", &ModelSpec::lm_head_bias);
  s.object("final_norm", &ModelSpec::final_norm);
  s.list("rope_tables", &ModelSpec::rope_tables, 0, kMaxRopeTables);
  s.list("layers", &ModelSpec::layers, 1, kMaxLayers);
}

}  // namespace freetoken::spec
