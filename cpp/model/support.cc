#include "model/support.h"

#include <string>

namespace freetoken {
namespace {

Status refuse(const std::string& where, const std::string& what) {
  return Unsupported(where + ": " + what + " is not supported by this version");
}

Status check_activation(const std::string& where, const GatedActivation& a) {
  if (a.kind != Activation::kSilu || a.limit != 0.0f || a.up_offset != 0.0f)
    return refuse(where, "an activation other than plain SiLU");
  return {};
}

Status check_norm(const std::string& where, const NormSpec& norm, bool per_head) {
  if (per_head && norm.kind == NormKind::kLayer) return refuse(where, "a layer norm per head");
  return {};
}

Status check_attention(const std::string& where, const AttentionSpec& a) {
  if (a.type != AttentionType::kFull && a.type != AttentionType::kWindow) return refuse(where, "this type of attention");
  if (a.sinks) return refuse(where, "attention sinks");
  if (a.softcap != 0.0f) return refuse(where, "a softcap of attention scores");
  if (a.v_dim % 16 != 0)
    return refuse(where, "a value head of " + std::to_string(a.v_dim) + " elements (not a multiple of 16)");
  FT_RETURN_IF_ERROR(check_norm(where, a.q_norm, true));
  return check_norm(where, a.k_norm, true);
}

Status check_moe(const std::string& where, const MoeSpec& m) {
  if (m.scoring != RouterScoring::kSoftmax) return refuse(where, "router scoring other than softmax over all experts");
  if (m.selection_bias) return refuse(where, "a selection bias of the router");
  if (m.groups != 1) return refuse(where, "a grouped choice of experts");
  if (m.shared_inner != 0) return refuse(where, "a shared expert");
  return check_activation(where, m.activation);
}

}  // namespace

Status check_model_supported(const ModelSpec& spec) {
  for (size_t l = 0; l < spec.layers.size(); l++)
    for (size_t s = 0; s < spec.layers[l].sublayers.size(); s++) {
      const SublayerSpec& sub = spec.layers[l].sublayers[s];
      const std::string where = "layer " + std::to_string(l) + ", sublayer " + std::to_string(s);
      if (sub.post_norm.kind != NormKind::kNone) return refuse(where, "a norm after the sublayer");
      if (sub.pre_norm.kind == NormKind::kNone) return refuse(where, "a sublayer without a norm before it");
      switch (sub.kind) {
        case SublayerKind::kAttention: FT_RETURN_IF_ERROR(check_attention(where, sub.attention)); break;
        case SublayerKind::kMlp: FT_RETURN_IF_ERROR(check_activation(where, sub.mlp.activation)); break;
        case SublayerKind::kMoe: FT_RETURN_IF_ERROR(check_moe(where, sub.moe)); break;
        default: return refuse(where, "this kind of sublayer");
      }
    }
  return {};
}

}  // namespace freetoken
