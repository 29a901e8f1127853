#include "model/support.h"

#include <set>
#include <string>

namespace freetoken {
namespace {

// Everything beyond the defaults that the forward pass has an operation for, in used_fields()' names.
const std::set<std::string>& supported_fields() {
  static const std::set<std::string> fields = [] {
    std::set<std::string> f = {
        "embed_scale", "logit_scale", "logit_softcap", "tied_embedding", "lm_head_bias", "residual_scale",
        "rope_tables.attention_factor", "rope_tables.interleaved", "rope_tables.offset",
        "kind=attention", "kind=mlp", "kind=moe",
        "attention.type=window", "attention.window", "attention.rope", "attention.qkv_bias", "attention.o_bias",
        "mlp.bias", "moe.normalise", "moe.scaling"};
    for (const char* norm : {"pre_norm", "final_norm"})
      for (const char* field : {"kind=rms", "kind=layer", "plus_one", "has_weight", "has_bias", "eps"})
        f.insert(std::string(norm) + "." + field);
    for (const char* norm : {"attention.q_norm", "attention.k_norm"})
      for (const char* field : {"kind=rms", "plus_one", "has_weight", "eps"}) f.insert(std::string(norm) + "." + field);
    return f;
  }();
  return fields;
}

}  // namespace

Status check_model_supported(const ModelSpec& spec) {
  std::string missing;
  for (const std::string& field : used_fields(spec))
    if (!supported_fields().count(field)) missing += (missing.empty() ? "" : ", ") + field;
  if (!missing.empty())
    return Unsupported("this model needs what this version does not run yet (ModelSpec fields): " + missing);
  for (size_t l = 0; l < spec.layers.size(); l++)
    for (size_t s = 0; s < spec.layers[l].sublayers.size(); s++) {
      const SublayerSpec& sub = spec.layers[l].sublayers[s];
      const std::string where = "layer " + std::to_string(l) + ", sublayer " + std::to_string(s);
      if (sub.pre_norm.kind == NormKind::kNone)
        return Unsupported(where + ": a sublayer without a norm before it is not run by this version");
      if (sub.kind == SublayerKind::kAttention && sub.attention.v_dim % 16 != 0)
        return Unsupported(where + ": a value head of " + std::to_string(sub.attention.v_dim) +
                           " elements is not run by this version (it must be a multiple of 16)");
    }
  return {};
}

}  // namespace freetoken
