#include "spec/describe.h"

namespace freetoken::spec {
namespace {

std::string at(const std::string& path, const char* field) { return path + "." + field; }

Status check_attention(const AttentionSpec& a, const ModelSpec& model, const std::string& path) {
  if (a.q_heads % a.kv_heads != 0) {
    return InvalidArgument(at(path, "kv_heads") + ": " + std::to_string(a.kv_heads) + " does not divide q_heads " +
                           std::to_string(a.q_heads));
  }
  if (a.type == AttentionType::kWindow && a.window < 1) {
    return InvalidArgument(at(path, "window") + ": a window attention needs a window of at least 1");
  }
  if (a.type != AttentionType::kWindow && a.window != 0) {
    return InvalidArgument(at(path, "window") + ": only a window attention has one");
  }
  if (a.rope < 0) return {};
  if (static_cast<size_t>(a.rope) >= model.rope_tables.size()) {
    return InvalidArgument(at(path, "rope") + ": " + std::to_string(a.rope) + ", but there are " +
                           std::to_string(model.rope_tables.size()) + " rope_tables");
  }
  const RopeTable& rope = model.rope_tables[static_cast<size_t>(a.rope)];
  const size_t last = static_cast<size_t>(rope.offset) + 2 * rope.inv_freq.size();
  if (last > static_cast<size_t>(a.qk_dim)) {
    return InvalidArgument(at(path, "rope") + ": rotates elements up to " + std::to_string(last) + " of qk_dim " +
                           std::to_string(a.qk_dim));
  }
  return {};
}

Status check_moe(const MoeSpec& m, const std::string& path) {
  if (m.experts_per_token > m.experts) {
    return InvalidArgument(at(path, "experts_per_token") + ": " + std::to_string(m.experts_per_token) + " of " +
                           std::to_string(m.experts) + " experts");
  }
  if (m.experts % m.groups != 0) {
    return InvalidArgument(at(path, "groups") + ": " + std::to_string(m.groups) + " does not divide experts " +
                           std::to_string(m.experts));
  }
  if (m.groups_per_token > m.groups) {
    return InvalidArgument(at(path, "groups_per_token") + ": " + std::to_string(m.groups_per_token) + " of " +
                           std::to_string(m.groups) + " groups");
  }
  return {};
}

}  // namespace

Status check(const ModelSpec& model) {
  for (size_t l = 0; l < model.layers.size(); ++l) {
    const LayerSpec& layer = model.layers[l];
    for (size_t s = 0; s < layer.sublayers.size(); ++s) {
      const SublayerSpec& sub = layer.sublayers[s];
      const std::string path = "layers[" + std::to_string(l) + "].sublayers[" + std::to_string(s) + "]";
      if (sub.kind == SublayerKind::kAttention) {
        FT_RETURN_IF_ERROR(check_attention(sub.attention, model, at(path, "attention")));
      }
      if (sub.kind == SublayerKind::kMoe) FT_RETURN_IF_ERROR(check_moe(sub.moe, at(path, "moe")));
    }
  }
  return {};
}

}  // namespace freetoken::spec
