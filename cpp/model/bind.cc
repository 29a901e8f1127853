// Finds the weights of every sublayer by canonical name and checks their shapes.
#include <algorithm>

#include "model/model.h"

namespace freetoken {

Result<Weight> Model::matrix(const std::string& name, int n, int k) const {
  const Weight w = ops_.weight(name);
  if (!w.valid()) return InvalidArgument("weight " + name + " is missing");
  if (w.n != n || w.k != k)
    return InvalidArgument("weight " + name + " is [" + std::to_string(w.n) + ", " + std::to_string(w.k) + "], the model needs [" +
                           std::to_string(n) + ", " + std::to_string(k) + "]");
  return w;
}

Result<Tensor> Model::vector(const std::string& name, int n) const {
  const Tensor t = ops_.vector(name);
  if (!t.valid()) return InvalidArgument("weight " + name + " is missing");
  if (t.cols != n)
    return InvalidArgument("weight " + name + " has " + std::to_string(t.cols) + " values, the model needs " + std::to_string(n));
  return t;
}

void Model::make_units() {
  constexpr int kMoeParts = 8;
  for (const std::vector<Sublayer>& layer : layers_)
    for (const Sublayer& s : layer) {
      const int experts = s.spec->kind == SublayerKind::kMoe ? s.spec->moe.experts : 0;
      const int parts = std::clamp(experts, 1, kMoeParts);
      for (int p = 0; p < parts; p++) units_.push_back({&s, {experts * p / parts, experts * (p + 1) / parts}});
    }
}

Status Model::bind() {
  FT_ASSIGN_OR_RETURN(embed_, matrix("embed", spec_.vocab, spec_.hidden));
  head_ = embed_;
  if (!spec_.tied_embedding) {
    FT_ASSIGN_OR_RETURN(head_, matrix("lm_head", spec_.vocab, spec_.hidden));
  }
  if (spec_.lm_head_bias) {
    FT_ASSIGN_OR_RETURN(head_bias_, vector("lm_head_bias", spec_.vocab));
  }
  if (spec_.final_norm.has_weight) {
    FT_ASSIGN_OR_RETURN(final_norm_, vector("final_norm", spec_.hidden));
  }
  if (spec_.final_norm.has_bias) {
    FT_ASSIGN_OR_RETURN(final_norm_bias_, vector("final_norm_bias", spec_.hidden));
  }
  for (size_t l = 0; l < spec_.layers.size(); l++) {
    std::vector<Sublayer>& sublayers = layers_.emplace_back();
    for (size_t i = 0; i < spec_.layers[l].sublayers.size(); i++) {
      Sublayer& s = sublayers.emplace_back();
      s.spec = &spec_.layers[l].sublayers[i];
      s.kv = kv_.slots[l][i];
      const std::string prefix = "layers." + std::to_string(l) + "." + std::to_string(i) + ".";
      if (s.spec->pre_norm.has_weight) {
        FT_ASSIGN_OR_RETURN(s.pre_norm, vector(prefix + "pre_norm", spec_.hidden));
      }
      if (s.spec->pre_norm.has_bias) {
        FT_ASSIGN_OR_RETURN(s.pre_norm_bias, vector(prefix + "pre_norm_bias", spec_.hidden));
      }
      switch (s.spec->kind) {
        case SublayerKind::kAttention: FT_RETURN_IF_ERROR(bind_attention(prefix, s)); break;
        case SublayerKind::kMlp: FT_RETURN_IF_ERROR(bind_mlp(prefix, s)); break;
        default: FT_RETURN_IF_ERROR(bind_moe(prefix, s)); break;
      }
    }
  }
  return {};
}

Status Model::bind_attention(const std::string& prefix, Sublayer& s) {
  const AttentionSpec& a = s.spec->attention;
  const int q = a.q_heads * a.qk_dim, k = a.kv_heads * a.qk_dim, v = a.kv_heads * a.v_dim;
  FT_ASSIGN_OR_RETURN(s.q, matrix(prefix + "q", q, spec_.hidden));
  FT_ASSIGN_OR_RETURN(s.k, matrix(prefix + "k", k, spec_.hidden));
  FT_ASSIGN_OR_RETURN(s.v, matrix(prefix + "v", v, spec_.hidden));
  FT_ASSIGN_OR_RETURN(s.o, matrix(prefix + "o", spec_.hidden, a.q_heads * a.v_dim));
  if (a.qkv_bias) {
    FT_ASSIGN_OR_RETURN(s.q_bias, vector(prefix + "q_bias", q));
    FT_ASSIGN_OR_RETURN(s.k_bias, vector(prefix + "k_bias", k));
    FT_ASSIGN_OR_RETURN(s.v_bias, vector(prefix + "v_bias", v));
  }
  if (a.o_bias) {
    FT_ASSIGN_OR_RETURN(s.o_bias, vector(prefix + "o_bias", spec_.hidden));
  }
  if (a.q_norm.kind != NormKind::kNone && a.q_norm.has_weight) {
    FT_ASSIGN_OR_RETURN(s.q_norm, vector(prefix + "q_norm", a.qk_dim));
  }
  if (a.k_norm.kind != NormKind::kNone && a.k_norm.has_weight) {
    FT_ASSIGN_OR_RETURN(s.k_norm, vector(prefix + "k_norm", a.qk_dim));
  }
  return {};
}

Status Model::bind_mlp(const std::string& prefix, Sublayer& s) {
  const MlpSpec& m = s.spec->mlp;
  s.mlp.inner = m.inner;
  s.mlp.activation = m.activation;
  if (ops_.weight(prefix + "gate_up").valid()) {
    FT_ASSIGN_OR_RETURN(s.mlp.gate_up, matrix(prefix + "gate_up", 2 * int(align_up(size_t(m.inner), 16)), spec_.hidden));
  } else {
    FT_ASSIGN_OR_RETURN(s.mlp.gate_up, matrix(prefix + "gate", m.inner, spec_.hidden));
    FT_ASSIGN_OR_RETURN(s.mlp.up, matrix(prefix + "up", m.inner, spec_.hidden));
  }
  FT_ASSIGN_OR_RETURN(s.mlp.down, matrix(prefix + "down", spec_.hidden, m.inner));
  if (m.bias) {
    FT_ASSIGN_OR_RETURN(s.mlp.gate_bias, vector(prefix + "gate_bias", m.inner));
    FT_ASSIGN_OR_RETURN(s.mlp.up_bias, vector(prefix + "up_bias", m.inner));
    FT_ASSIGN_OR_RETURN(s.mlp.down_bias, vector(prefix + "down_bias", spec_.hidden));
  }
  return {};
}

Status Model::bind_moe(const std::string& prefix, Sublayer& s) {
  const MoeSpec& m = s.spec->moe;
  FT_ASSIGN_OR_RETURN(s.router, matrix(prefix + "router", m.experts, spec_.hidden));
  std::vector<uint64_t> addresses;
  for (int e = 0; e < m.experts; e++) {
    const std::string name = prefix + "experts." + std::to_string(e);
    const ExpertLayout* layout = ops_.expert_layout(name);
    if (!layout) return InvalidArgument("expert " + name + " is missing");
    if (layout->hidden != spec_.hidden || layout->inner != m.inner)
      return InvalidArgument("expert " + name + " has the wrong shape");
    if (e == 0) s.experts.layout = *layout;
    if (layout->gate_format != s.experts.layout.gate_format || layout->up_format != s.experts.layout.up_format ||
        layout->down_format != s.experts.layout.down_format)
      return Unsupported("expert " + name + " has another format than expert 0 of its layer");
    addresses.push_back(ops_.extent_address(name));
  }
  s.experts.layer = resident_.add_layer(std::move(addresses));
  s.experts.experts = m.experts;
  s.experts.resolver = &resident_;
  return {};
}

Status Model::allocate() {
  int q = 1, k = 1, v = 1, attended = 1;
  for (const LayerSpec& layer : spec_.layers)
    for (const SublayerSpec& s : layer.sublayers) {
      if (s.kind != SublayerKind::kAttention) continue;
      const AttentionSpec& a = s.attention;
      q = std::max(q, a.q_heads * a.qk_dim);
      k = std::max(k, a.kv_heads * a.qk_dim);
      v = std::max(v, a.kv_heads * a.v_dim);
      attended = std::max(attended, a.q_heads * a.v_dim);
    }
  auto make = [&](Tensor* t, int rows, int cols) -> Status {
    FT_ASSIGN_OR_RETURN(*t, ops_.allocate(DType::kF32, rows, cols));
    return {};
  };
  for (Tensor* t : {&hidden_[0], &hidden_[1], &normed_[0], &normed_[1], &update_})
    FT_RETURN_IF_ERROR(make(t, limits_.max_rows, spec_.hidden));
  FT_RETURN_IF_ERROR(make(&q_, limits_.max_rows, q));
  FT_RETURN_IF_ERROR(make(&k_, limits_.max_rows, k));
  FT_RETURN_IF_ERROR(make(&v_, limits_.max_rows, v));
  FT_RETURN_IF_ERROR(make(&attended_, limits_.max_rows, attended));
  FT_RETURN_IF_ERROR(make(&picked_, limits_.max_logit_rows, spec_.hidden));
  FT_RETURN_IF_ERROR(make(&picked_normed_, limits_.max_logit_rows, spec_.hidden));
  return make(&logits_, limits_.max_logit_rows, spec_.vocab);
}

}  // namespace freetoken
