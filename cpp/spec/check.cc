#include <string>

#include "spec/describe.h"

namespace freetoken::spec {
namespace {

// Keeps the first complaint; every check reads as "must(condition, field, what is wrong)".
class Checker {
 public:
  Status status;

  bool must(bool holds, const std::string& path, const std::string& what) {
    if (!holds && status.ok()) status = InvalidArgument(path + ": " + what);
    return holds;
  }
};

std::string n(int value) { return std::to_string(value); }

void check_rope(Checker& c, const ModelSpec& model, int index, int dim, const std::string& path) {
  if (index < 0) return;
  const size_t tables = model.rope_tables.size();
  if (!c.must(static_cast<size_t>(index) < tables, path,
              n(index) + ", but there are " + std::to_string(tables) + " rope_tables")) {
    return;
  }
  const RopeTable& rope = model.rope_tables[static_cast<size_t>(index)];
  const size_t last = static_cast<size_t>(rope.offset) + 2 * rope.inv_freq.size();
  c.must(last <= static_cast<size_t>(dim), path,
         "rotates elements up to " + std::to_string(last) + " of a head of " + n(dim));
}

void check_indexer(Checker& c, const ModelSpec& model, const AttentionSpec& a, const std::string& path) {
  const IndexerSpec& x = a.indexer;
  if (x.top_k == 0) return;  // this layer uses another one's selection
  c.must(x.heads > 0 && x.dim > 0, path + ".heads", "an indexer needs heads and dim");
  c.must(x.heads == 0 || x.heads % x.kv_heads == 0, path + ".kv_heads",
         n(x.kv_heads) + " does not divide heads " + n(x.heads));
  c.must(!x.from_q_latent || a.q_rank > 0, path + ".from_q_latent", "the attention has no q latent (q_rank 0)");
  c.must(!x.per_head || (x.heads > 0 && a.q_heads % x.heads == 0), path + ".heads",
         n(x.heads) + " does not divide q_heads " + n(a.q_heads));
  check_rope(c, model, x.rope, x.dim, path + ".rope");
  if (x.pool == IndexPool::kCompressor) {
    c.must(x.compressor.ratio > 0, path + ".compressor.ratio", "at least 1");
    check_rope(c, model, x.compressor.rope, x.dim, path + ".compressor.rope");
  }
}

void check_attention(Checker& c, const ModelSpec& model, const SublayerSpec& sub, const std::string& path) {
  const AttentionSpec& a = sub.attention;
  const bool mla = a.type == AttentionType::kMla || a.type == AttentionType::kDsa;
  const bool windowed = a.type == AttentionType::kWindow || a.type == AttentionType::kDsv4;
  c.must(a.q_heads % a.kv_heads == 0, path + ".kv_heads",
         n(a.kv_heads) + " does not divide q_heads " + n(a.q_heads));
  c.must(windowed || a.window == 0, path + ".window", "only a window attention has one");
  c.must(!windowed || a.window > 0, path + ".window", "a window attention needs a window of at least 1");
  c.must((a.type == AttentionType::kChunked) == (a.chunk > 0), path + ".chunk",
         a.chunk > 0 ? "only a chunked attention has one" : "a chunked attention needs a chunk of at least 1");
  c.must((a.o_groups > 0) == (a.o_rank > 0), path + ".o_groups", "o_groups and o_rank come together");
  c.must(a.o_groups == 0 || a.q_heads % a.o_groups == 0, path + ".o_groups",
         n(a.o_groups) + " does not divide q_heads " + n(a.q_heads));
  c.must((a.relative_bias.dim > 0) == (a.relative_bias.extent > 0), path + ".relative_bias",
         "dim and extent come together");
  c.must(a.value_source == ValueSource::kOwn || a.qk_dim == a.v_dim, path + ".value_source",
         "values made from keys need qk_dim " + n(a.qk_dim) + " equal to v_dim " + n(a.v_dim));
  c.must(!mla || a.mla.rope_dim < a.qk_dim || a.mla.rope_dim == 0, path + ".mla.rope_dim",
         n(a.mla.rope_dim) + " of qk_dim " + n(a.qk_dim) + " leaves nothing for the latent");
  check_rope(c, model, a.rope, a.qk_dim, path + ".rope");
  if (a.type == AttentionType::kDsa || a.type == AttentionType::kBsa || a.type == AttentionType::kQsa) {
    c.must((a.indexer.top_k > 0) != (sub.index_source >= 0), path + ".indexer",
           "a sparse attention has an indexer of its own or an index_source");
  }
  check_indexer(c, model, a, path + ".indexer");
  if (a.type == AttentionType::kDsv4) {
    c.must(a.indexer.top_k == 0 || a.compressor.ratio > 0, path + ".compressor", "the indexer needs compressed entries");
    check_rope(c, model, a.compressor.rope, a.qk_dim, path + ".compressor.rope");
  }
}

void check_linear(Checker& c, const LinearAttentionSpec& a, const std::string& path) {
  const bool has_conv = a.kind != LinearAttentionKind::kLightning;
  c.must(!has_conv || a.conv_kernel > 0, path + ".conv_kernel", "at least 1");
  if (a.kind == LinearAttentionKind::kShortConv) return;
  if (!c.must(a.k_heads > 0 && a.v_heads > 0 && a.k_dim > 0 && a.v_dim > 0, path,
              "k_heads, v_heads, k_dim and v_dim are at least 1")) {
    return;
  }
  c.must(a.v_heads % a.k_heads == 0, path + ".v_heads",
         n(a.v_heads) + " is not a multiple of k_heads " + n(a.k_heads));
  c.must(a.kind != LinearAttentionKind::kLightning || a.decay.size() == static_cast<size_t>(a.v_heads), path + ".decay",
         std::to_string(a.decay.size()) + " rates for " + n(a.v_heads) + " heads");
}

void check_moe(Checker& c, const MoeSpec& m, const std::string& path) {
  c.must(m.experts_per_token <= m.experts + m.identity_experts, path + ".experts_per_token",
         n(m.experts_per_token) + " of " + n(m.experts) + " experts");
  c.must(m.experts % m.groups == 0, path + ".groups", n(m.groups) + " does not divide experts " + n(m.experts));
  c.must(m.groups_per_token <= m.groups, path + ".groups_per_token",
         n(m.groups_per_token) + " of " + n(m.groups) + " groups");
  c.must(m.groups_per_token > 0 && m.experts_per_token <= m.groups_per_token * (m.experts / m.groups) + m.identity_experts,
         path + ".groups_per_token", n(m.groups_per_token) + " groups hold fewer than " + n(m.experts_per_token) + " experts");
  c.must(m.shared_inner > 0 || (!m.shared_gate && !m.shared_routed && m.shared_experts == 1), path + ".shared_inner",
         "there is no shared expert");
  c.must((m.scoring == RouterScoring::kJointSigmoid) == m.shared_routed, path + ".shared_routed",
         "goes with scoring joint_sigmoid");
}

void check_sublayer(Checker& c, const ModelSpec& model, int layer, int index, const SublayerSpec& sub, const std::string& path) {
  c.must(sub.input < index, path + ".input", n(sub.input) + " is not an earlier sublayer");
  c.must(sub.kv_source < layer, path + ".kv_source", n(sub.kv_source) + " is not an earlier layer");
  c.must(sub.index_source < layer, path + ".index_source", n(sub.index_source) + " is not an earlier layer");
  c.must((sub.residual == ResidualRule::kHyper) == (model.hyper.kind != HyperKind::kNone), path + ".residual",
         "rule hyper goes with the model's hyper");
  switch (sub.kind) {
    case SublayerKind::kAttention: check_attention(c, model, sub, path + ".attention"); break;
    case SublayerKind::kLinearAttention: check_linear(c, sub.linear_attention, path + ".linear_attention"); break;
    case SublayerKind::kMoe: check_moe(c, sub.moe, path + ".moe"); break;
    case SublayerKind::kTableMemory:
      c.must(sub.table_memory.dim == model.table.dim, path + ".table_memory.dim",
             n(sub.table_memory.dim) + ", the model's table has " + n(model.table.dim));
      break;
    case SublayerKind::kMlp: break;
  }
}

void check_layer(Checker& c, const ModelSpec& model, int layer, const LayerSpec& spec, const std::string& path) {
  for (size_t s = 0; s < spec.sublayers.size(); ++s) {
    const std::string at = path + ".sublayers[" + std::to_string(s) + "]";
    const SublayerSpec& sub = spec.sublayers[s];
    check_sublayer(c, model, layer, static_cast<int>(s), sub, at);
    c.must(sub.output != SublayerOutput::kJoin || s + 1 < spec.sublayers.size(), at + ".output",
           "join needs a sublayer after it");
  }
}

// The layer named by a kv_source or index_source has the attention that the user of it expects.
void check_sources(Checker& c, const ModelSpec& model) {
  const auto find = [&](int layer) -> const SublayerSpec* {
    for (const SublayerSpec& sub : model.layers[static_cast<size_t>(layer)].sublayers) {
      if (sub.kind == SublayerKind::kAttention) return &sub;
    }
    return nullptr;
  };
  for (size_t l = 0; l < model.layers.size() && c.status.ok(); ++l) {
    for (size_t s = 0; s < model.layers[l].sublayers.size(); ++s) {
      const SublayerSpec& sub = model.layers[l].sublayers[s];
      const std::string path = "layers[" + std::to_string(l) + "].sublayers[" + std::to_string(s) + "]";
      if (sub.kv_source >= 0) {
        const SublayerSpec* source = find(sub.kv_source);
        c.must(sub.kind == SublayerKind::kAttention && source != nullptr && source->kv_source < 0 &&
                   source->attention.kv_heads == sub.attention.kv_heads &&
                   source->attention.qk_dim == sub.attention.qk_dim && source->attention.v_dim == sub.attention.v_dim,
               path + ".kv_source", "layer " + n(sub.kv_source) + " has no keys and values of this form");
      }
      if (sub.index_source >= 0) {
        const SublayerSpec* source = find(sub.index_source);
        c.must(sub.kind == SublayerKind::kAttention && source != nullptr && source->attention.indexer.top_k > 0,
               path + ".index_source", "layer " + n(sub.index_source) + " has no indexer");
      }
    }
  }
}

}  // namespace

Status check(const ModelSpec& model) {
  Checker c;
  for (size_t l = 0; l < model.layers.size() && c.status.ok(); ++l) {
    check_layer(c, model, static_cast<int>(l), model.layers[l], "layers[" + std::to_string(l) + "]");
  }
  if (c.status.ok()) check_sources(c, model);
  for (size_t i = 0; i < model.mtp.size() && c.status.ok(); ++i) {
    check_layer(c, model, static_cast<int>(model.layers.size()), model.mtp[i].layer, "mtp[" + std::to_string(i) + "].layer");
  }
  return c.status;
}

}  // namespace freetoken::spec
