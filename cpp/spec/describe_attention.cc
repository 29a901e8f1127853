#include "spec/describe.h"

namespace freetoken::spec {
namespace {

constexpr const char* kAttentionTypes[] = {"full", "window", "chunked", "mla", "dsa", "dsv4", "bsa", "qsa"};
constexpr const char* kValueSources[] = {"own", "key_projection", "key"};
constexpr const char* kGates[] = {"none", "head", "element"};
constexpr const char* kGateActivations[] = {"sigmoid", "softplus", "silu"};
constexpr const char* kNormSpans[] = {"head", "all"};
constexpr const char* kTemperatures[] = {"none", "floor_log", "log", "learned_log"};
constexpr const char* kPools[] = {"none", "max", "mean", "gated", "compressor"};
constexpr const char* kLinearKinds[] = {"gdn", "kda", "lightning", "mamba2", "short_conv"};
constexpr int kMaxKernel = 1024;

bool selects(const AttentionSpec& a) {
  return a.type == AttentionType::kDsa || a.type == AttentionType::kBsa || a.type == AttentionType::kQsa;
}

}  // namespace

void describe(Fields& fields, TemperatureSpec& temperature) {
  Struct s(fields, temperature);
  s.choice("kind", &TemperatureSpec::kind, kTemperatures);
  s.real("alpha", &TemperatureSpec::alpha, -kMaxFactor, kMaxFactor);
  s.real("scale", &TemperatureSpec::scale, 1e-9, kMaxFactor);
  s.integer("offset", &TemperatureSpec::offset, 0, 1);
}

void describe(Fields& fields, MlaSpec& mla) {
  Struct s(fields, mla);
  s.integer("rank", &MlaSpec::rank, 1, kMaxHidden, Need::kRequired);
  s.integer("rope_dim", &MlaSpec::rope_dim, 0, kMaxHeads);
  s.object("norm", &MlaSpec::norm);
  s.real("kv_scale", &MlaSpec::kv_scale, -kMaxFactor, kMaxFactor);
}

void describe(Fields& fields, CompressorSpec& compressor) {
  Struct s(fields, compressor);
  s.integer("ratio", &CompressorSpec::ratio, 0, kMaxHeads);
  s.flag("overlap", &CompressorSpec::overlap);
  s.object("norm", &CompressorSpec::norm);
  s.integer("rope", &CompressorSpec::rope, -1, kMaxRopeTables - 1);
}

void describe(Fields& fields, IndexerSpec& indexer) {
  Struct s(fields, indexer);
  s.integer("heads", &IndexerSpec::heads, 0, kMaxHeads);
  s.integer("kv_heads", &IndexerSpec::kv_heads, 1, kMaxHeads);
  s.integer("dim", &IndexerSpec::dim, 0, kMaxHeads);
  s.integer("top_k", &IndexerSpec::top_k, 0, kMaxPositions);
  s.integer("block", &IndexerSpec::block, 1, kMaxHeads);
  s.integer("local_blocks", &IndexerSpec::local_blocks, 0, kMaxHeads);
  s.flag("tail", &IndexerSpec::tail);
  s.choice("pool", &IndexerSpec::pool, kPools);
  s.flag("from_q_latent", &IndexerSpec::from_q_latent);
  s.flag("relu", &IndexerSpec::relu);
  s.flag("weighted", &IndexerSpec::weighted);
  s.flag("per_head", &IndexerSpec::per_head);
  s.integer("rope", &IndexerSpec::rope, -1, kMaxRopeTables - 1);
  s.object("q_input_norm", &IndexerSpec::q_input_norm);
  s.object("q_norm", &IndexerSpec::q_norm);
  s.object("k_norm", &IndexerSpec::k_norm);
  s.object("temperature", &IndexerSpec::temperature);
  if (indexer.pool == IndexPool::kCompressor) s.object("compressor", &IndexerSpec::compressor, Need::kRequired);
}

void describe(Fields& fields, RelativeBiasSpec& bias) {
  Struct s(fields, bias);
  s.integer("dim", &RelativeBiasSpec::dim, 0, kMaxHeads);
  s.integer("extent", &RelativeBiasSpec::extent, 0, kMaxPositions);
}

void describe(Fields& fields, AttentionSpec& attention) {
  Struct s(fields, attention);
  s.choice("type", &AttentionSpec::type, kAttentionTypes);
  s.integer("q_heads", &AttentionSpec::q_heads, 1, kMaxHeads, Need::kRequired);
  s.integer("kv_heads", &AttentionSpec::kv_heads, 1, kMaxHeads, Need::kRequired);
  s.integer("qk_dim", &AttentionSpec::qk_dim, 1, kMaxHeads, Need::kRequired);
  s.integer("v_dim", &AttentionSpec::v_dim, 1, kMaxHeads, Need::kRequired);
  s.integer("window", &AttentionSpec::window, 0, kMaxPositions);
  s.integer("chunk", &AttentionSpec::chunk, 0, kMaxPositions);
  s.integer("rope", &AttentionSpec::rope, -1, kMaxRopeTables - 1);
  s.real("scale", &AttentionSpec::scale, 1e-9, kMaxFactor, Need::kRequired);
  s.real("softcap", &AttentionSpec::softcap, 0.0, kMaxFactor);
  s.flag("sinks", &AttentionSpec::sinks);
  s.flag("qkv_bias", &AttentionSpec::qkv_bias);
  s.flag("o_bias", &AttentionSpec::o_bias);
  s.object("q_norm", &AttentionSpec::q_norm);
  s.object("k_norm", &AttentionSpec::k_norm);
  s.choice("norm_span", &AttentionSpec::norm_span, kNormSpans);
  s.flag("norm_after_rope", &AttentionSpec::norm_after_rope);
  s.real("qkv_clip", &AttentionSpec::qkv_clip, 0.0, kMaxFactor);
  s.integer("q_rank", &AttentionSpec::q_rank, 0, kMaxHidden);
  s.object("q_latent_norm", &AttentionSpec::q_latent_norm);
  s.choice("value_source", &AttentionSpec::value_source, kValueSources);
  s.object("v_norm", &AttentionSpec::v_norm);
  s.real("v_scale", &AttentionSpec::v_scale, -kMaxFactor, kMaxFactor);
  s.integer("kv_conv", &AttentionSpec::kv_conv, 0, kMaxKernel);
  s.object("temperature", &AttentionSpec::temperature);
  s.object("relative_bias", &AttentionSpec::relative_bias);
  s.flag("rotate_output", &AttentionSpec::rotate_output);
  s.object("o_norm", &AttentionSpec::o_norm);
  s.choice("gate", &AttentionSpec::gate, kGates);
  s.choice("gate_activation", &AttentionSpec::gate_activation, kGateActivations);
  s.integer("o_groups", &AttentionSpec::o_groups, 0, kMaxHeads);
  s.integer("o_rank", &AttentionSpec::o_rank, 0, kMaxHidden);
  // the objects of other types stay unknown fields
  if (attention.type == AttentionType::kMla || attention.type == AttentionType::kDsa) {
    s.object("mla", &AttentionSpec::mla, Need::kRequired);
  }
  if (selects(attention)) s.object("indexer", &AttentionSpec::indexer);
  if (attention.type == AttentionType::kDsv4) {
    s.object("indexer", &AttentionSpec::indexer);
    s.object("compressor", &AttentionSpec::compressor);
  }
}

void describe(Fields& fields, LinearAttentionSpec& linear) {
  Struct s(fields, linear);
  s.choice("kind", &LinearAttentionSpec::kind, kLinearKinds, Need::kRequired);
  s.integer("k_heads", &LinearAttentionSpec::k_heads, 0, kMaxHeads);
  s.integer("v_heads", &LinearAttentionSpec::v_heads, 0, kMaxHeads);
  s.integer("k_dim", &LinearAttentionSpec::k_dim, 0, kMaxHeads);
  s.integer("v_dim", &LinearAttentionSpec::v_dim, 0, kMaxHeads);
  s.integer("conv_kernel", &LinearAttentionSpec::conv_kernel, 0, kMaxKernel);
  s.flag("conv_bias", &LinearAttentionSpec::conv_bias);
  s.flag("bias", &LinearAttentionSpec::bias);
  s.real("beta_scale", &LinearAttentionSpec::beta_scale, 0.0, kMaxFactor);
  s.real("decay_bound", &LinearAttentionSpec::decay_bound, -kMaxFactor, 0.0);
  s.integer("decay_rank", &LinearAttentionSpec::decay_rank, 0, kMaxHidden);
  s.integer("gate_rank", &LinearAttentionSpec::gate_rank, 0, kMaxHidden);
  s.choice("gate_activation", &LinearAttentionSpec::gate_activation, kGateActivations);
  s.object("norm", &LinearAttentionSpec::norm);
  s.flag("gate_before_norm", &LinearAttentionSpec::gate_before_norm);
  s.reals("decay", &LinearAttentionSpec::decay, 0.0, kMaxFactor, kMaxHeads);
  s.real("dt_min", &LinearAttentionSpec::dt_min, 0.0, kMaxFactor);
  s.real("dt_max", &LinearAttentionSpec::dt_max, 0.0, kMaxFactor);
}

}  // namespace freetoken::spec
