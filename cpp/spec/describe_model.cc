#include "spec/describe.h"

namespace freetoken::spec {
namespace {

constexpr const char* kMemoryKinds[] = {"per_layer"};
constexpr const char* kSublayerKinds[] = {"attention", "linear_attention", "mlp", "moe", "table_memory"};
constexpr const char* kResidualRules[] = {"add", "post_norm", "hyper", "gated", "none"};
constexpr const char* kOutputs[] = {"residual", "join"};
constexpr const char* kHyperKinds[] = {"none", "sinkhorn", "magnitude", "low_rank"};
constexpr const char* kHyperHeads[] = {"weighted", "mean"};

}  // namespace

void describe(Fields& fields, TableMemorySpec& memory) {
  Struct s(fields, memory);
  s.choice("kind", &TableMemorySpec::kind, kMemoryKinds, Need::kRequired);
  s.integer("dim", &TableMemorySpec::dim, 1, kMaxHidden, Need::kRequired);
  s.object("activation", &TableMemorySpec::activation);
}

void describe(Fields& fields, SublayerSpec& sublayer) {
  Struct s(fields, sublayer);
  s.choice("kind", &SublayerSpec::kind, kSublayerKinds, Need::kRequired);
  s.object("pre_norm", &SublayerSpec::pre_norm);
  s.object("post_norm", &SublayerSpec::post_norm);
  s.real("residual_scale", &SublayerSpec::residual_scale, -kMaxFactor, kMaxFactor);
  s.integer("input", &SublayerSpec::input, -1, kMaxSublayers - 1);
  s.choice("output", &SublayerSpec::output, kOutputs);
  s.object("group_norm", &SublayerSpec::group_norm);
  s.integer("post_conv", &SublayerSpec::post_conv, 0, 1024);
  s.choice("residual", &SublayerSpec::residual, kResidualRules);
  s.real("skip_scale", &SublayerSpec::skip_scale, -kMaxFactor, kMaxFactor);
  s.real("gate_temperature", &SublayerSpec::gate_temperature, 1e-9, kMaxFactor);
  s.real("gate_eps", &SublayerSpec::gate_eps, 0.0, 1.0);
  s.integer("kv_source", &SublayerSpec::kv_source, -1, kMaxLayers - 1);
  s.integer("index_source", &SublayerSpec::index_source, -1, kMaxLayers - 1);
  s.integer("token_scope", &SublayerSpec::token_scope, 0, kMaxPositions);
  switch (sublayer.kind) {  // the objects of other kinds stay unknown fields
    case SublayerKind::kAttention: s.object("attention", &SublayerSpec::attention, Need::kRequired); break;
    case SublayerKind::kLinearAttention:
      s.object("linear_attention", &SublayerSpec::linear_attention, Need::kRequired);
      break;
    case SublayerKind::kMlp: s.object("mlp", &SublayerSpec::mlp, Need::kRequired); break;
    case SublayerKind::kMoe: s.object("moe", &SublayerSpec::moe, Need::kRequired); break;
    case SublayerKind::kTableMemory: s.object("table_memory", &SublayerSpec::table_memory, Need::kRequired); break;
  }
}

void describe(Fields& fields, LayerSpec& layer) {
  Struct s(fields, layer);
  s.list("sublayers", &LayerSpec::sublayers, 1, kMaxSublayers);
  s.flag("scale", &LayerSpec::scale);
}

void describe(Fields& fields, HyperSpec& hyper) {
  Struct s(fields, hyper);
  s.choice("kind", &HyperSpec::kind, kHyperKinds);
  s.integer("streams", &HyperSpec::streams, 1, 64);
  s.integer("sinkhorn_iterations", &HyperSpec::sinkhorn_iterations, 0, 1000);
  s.real("eps", &HyperSpec::eps, 0.0, 1.0);
  s.real("norm_eps", &HyperSpec::norm_eps, 0.0, 1.0);
  s.real("post_scale", &HyperSpec::post_scale, -kMaxFactor, kMaxFactor);
  s.integer("rank", &HyperSpec::rank, 0, kMaxHidden);
  s.choice("head", &HyperSpec::head, kHyperHeads);
}

void describe(Fields& fields, TableSpec& table) {
  Struct s(fields, table);
  s.integer("dim", &TableSpec::dim, 0, kMaxHidden);
  s.integer("vocab", &TableSpec::vocab, 0, kMaxVocab);
  s.real("table_scale", &TableSpec::table_scale, -kMaxFactor, kMaxFactor);
  s.real("projection_scale", &TableSpec::projection_scale, -kMaxFactor, kMaxFactor);
  s.real("mix_scale", &TableSpec::mix_scale, -kMaxFactor, kMaxFactor);
  s.object("norm", &TableSpec::norm);
}

void describe(Fields& fields, MtpSpec& mtp) {
  Struct s(fields, mtp);
  s.object("embed_norm", &MtpSpec::embed_norm);
  s.object("hidden_norm", &MtpSpec::hidden_norm);
  s.object("layer", &MtpSpec::layer, Need::kRequired);
  s.object("final_norm", &MtpSpec::final_norm);
  s.flag("own_embedding", &MtpSpec::own_embedding);
  s.flag("own_head", &MtpSpec::own_head);
}

void describe(Fields& fields, ModelSpec& model) {
  Struct s(fields, model);
  s.integer("hidden", &ModelSpec::hidden, 1, kMaxHidden, Need::kRequired);
  s.integer("vocab", &ModelSpec::vocab, 1, kMaxVocab, Need::kRequired);
  s.integer("max_positions", &ModelSpec::max_positions, 1, kMaxPositions, Need::kRequired);
  s.real("embed_scale", &ModelSpec::embed_scale, -kMaxFactor, kMaxFactor);
  s.object("embed_norm", &ModelSpec::embed_norm);
  s.real("logit_scale", &ModelSpec::logit_scale, -kMaxFactor, kMaxFactor);
  s.real("logit_softcap", &ModelSpec::logit_softcap, 0.0, kMaxFactor);
  s.flag("tied_embedding", &ModelSpec::tied_embedding);
  s.flag("lm_head_bias", &ModelSpec::lm_head_bias);
  s.object("final_norm", &ModelSpec::final_norm);
  s.object("hyper", &ModelSpec::hyper);
  s.object("table", &ModelSpec::table);
  s.list("rope_tables", &ModelSpec::rope_tables, 0, kMaxRopeTables);
  s.list("layers", &ModelSpec::layers, 1, kMaxLayers);
  s.list("mtp", &ModelSpec::mtp, 0, 16);
}

}  // namespace freetoken::spec
