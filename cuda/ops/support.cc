#include "cuda/ops/support.h"

#include <string>

#include "cuda/kernels/attention.h"
#include "cuda/kernels/matmul.h"
#include "cuda/kernels/moe_matmul.h"
#include "cuda/kernels/router.h"

namespace freetoken::cuda {
namespace {

std::string format_of(WeightFormat format) { return traits(format).name; }

Status refused(const std::string& what) { return Unsupported("the CUDA backend does not run " + what); }

Status at(const std::string& where, const Status& status) {
  return status.ok() ? status : Status(status.code(), where + ": " + status.message());
}

Status check_sublayer(const SublayerSpec& s) {
  FT_RETURN_IF_ERROR(check_norm(s.pre_norm));
  switch (s.kind) {
    case SublayerKind::kAttention: return check_attention(s.attention);
    case SublayerKind::kMlp: return check_activation(s.mlp.activation);
    case SublayerKind::kMoe: return check_moe(s.moe);
    default: return refused("linear attention or memory tables");
  }
}

}  // namespace

Status check_options(const DeviceOptions& options) {
  if (options.float32_activations)
    return refused("fp32 activations: it multiplies bf16 and quantised weights by bf16; leave the activations at auto");
  if (options.expert_slots < 0) return InvalidArgument("expert_slots is " + std::to_string(options.expert_slots));
  return {};
}

Status check_tensor(const PackedTensorInfo& info) {
  if (info.vector) return {};
  if (info.name.ends_with(".router")) {
    if (!linear_f32_supports(info.format)) return refused("a router in " + format_of(info.format) + " (" + info.name + ")");
  } else if (!linear_supports(info.format)) {
    return refused("weights in " + format_of(info.format) + " (" + info.name + ")");
  }
  return {};
}

Status check_expert(const std::string& name, const ExpertLayout& layout) {
  for (const WeightFormat format : {layout.gate_format, layout.up_format, layout.down_format})
    if (!expert_supports(format)) return refused("experts in " + format_of(format) + " (" + name + ")");
  return {};
}

Status check_norm(const NormSpec& norm) {
  if (norm.group != 0) return refused("norms over groups of elements (norm.group)");
  if (norm.weight_first) return refused("norms after their weight (norm.weight_first)");
  return {};
}

Status check_activation(const GatedActivation& activation) {
  if (activation.kind != Activation::kSilu || !activation.gated || activation.limit != 0.0f)
    return refused("feed-forward networks with another activation than silu of a gate, without limits");
  return {};
}

Status check_attention(const AttentionSpec& a) {
  if (a.type != AttentionType::kFull && a.type != AttentionType::kWindow)
    return refused("attention of another type than full and window");
  if (a.kv_heads <= 0 || a.q_heads % a.kv_heads != 0)
    return refused(std::to_string(a.q_heads) + " query heads on " + std::to_string(a.kv_heads) + " key-value heads");
  if (a.qk_dim > kMaxHeadDim || a.v_dim > kMaxHeadDim)
    return refused("heads of more than " + std::to_string(kMaxHeadDim) + " elements");
  for (const NormSpec* norm : {&a.q_norm, &a.k_norm}) {
    FT_RETURN_IF_ERROR(check_norm(*norm));
    if (norm->kind == NormKind::kLayer) return refused("layer norms of attention heads");
  }
  if (a.norm_span != NormSpan::kHead) return refused("norms over all heads together");
  if (a.norm_after_rope) return refused("head norms after the rotation");
  if (a.qkv_clip != 0.0f) return refused("clipped queries, keys and values");
  if (a.temperature.kind != TemperatureKind::kNone) return refused("query temperatures");
  if (a.relative_bias.dim != 0) return refused("relative attention biases");
  if (a.gate != OutputGate::kNone) return refused("attention output gates");
  return {};
}

Status check_moe(const MoeSpec& m) {
  FT_RETURN_IF_ERROR(check_activation(m.activation));
  if (m.scoring != RouterScoring::kSoftmax && m.scoring != RouterScoring::kSigmoid)
    return refused("a router scoring other than softmax and sigmoid");
  if (m.experts > kMaxRoutedExperts || m.experts > kMaxGroupedExperts)
    return refused(std::to_string(m.experts) + " experts in a layer, more than " + std::to_string(kMaxGroupedExperts));
  if (m.experts_per_token < 1 || m.experts_per_token > m.experts)
    return refused(std::to_string(m.experts_per_token) + " of " + std::to_string(m.experts) + " experts per token");
  if (m.groups > 1) return refused("routing by groups of experts");
  if (m.hash) return refused("experts chosen by token");
  if (m.identity_experts > 0) return refused("identity experts");
  if (m.weighted_side != WeightedSide::kOutput) return refused("experts whose input is weighted");
  if (m.expert_bias) return refused("biases of experts");
  if (m.latent > 0) return refused("experts on a latent");
  if (m.shared_inner > 0) return refused("shared experts");
  if (m.router_logit_scale != 1.0f || m.router_softcap != 0.0f || m.router_bias) return refused("scaled or biased router logits");
  return {};
}

Status check_spec(const ModelSpec& spec) {
  FT_RETURN_IF_ERROR(check_norm(spec.final_norm));
  for (const RopeTable& rope : spec.rope_tables)
    if (rope.learned) return refused("learned rotations");
  for (size_t l = 0; l < spec.layers.size(); l++)
    for (size_t s = 0; s < spec.layers[l].sublayers.size(); s++)
      FT_RETURN_IF_ERROR(at("layer " + std::to_string(l) + ", sublayer " + std::to_string(s),
                            check_sublayer(spec.layers[l].sublayers[s])));
  return {};
}

Status check_kv_group(const KvGroup& group) {
  if (group.dtype != DType::kBF16 && group.dtype != DType::kF32) return refused("a KV cache in another type than bf16 and f32");
  const int granule = group.dtype == DType::kF32 ? 4 : 8;
  for (const KvLayer& layer : group.layers)
    if (layer.qk_dim % granule != 0 || layer.v_dim % granule != 0)
      return refused("heads of " + std::to_string(layer.qk_dim) + " and " + std::to_string(layer.v_dim) +
                     " elements: they must be multiples of " + std::to_string(granule));
  return {};
}

}  // namespace freetoken::cuda
