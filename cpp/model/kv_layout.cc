#include "model/kv_layout.h"

#include <algorithm>

namespace freetoken {

KvLayout make_kv_layout(const ModelSpec& spec, DType kv_dtype) {
  KvLayout layout;
  for (const LayerSpec& layer : spec.layers) {
    std::vector<KvSlot>& slots = layout.slots.emplace_back();
    for (const SublayerSpec& s : layer.sublayers) {
      KvSlot& slot = slots.emplace_back();
      if (s.kind != SublayerKind::kAttention) continue;
      const bool windowed = s.attention.type == AttentionType::kWindow && s.attention.window < spec.max_positions;
      const Retention retention = windowed ? Retention::kWindow : Retention::kAll;
      const int window = windowed ? s.attention.window : 0;
      auto group = std::find_if(layout.groups.begin(), layout.groups.end(),
                                [&](const KvGroup& g) { return g.retention == retention && g.window == window; });
      if (group == layout.groups.end())
        group = layout.groups.insert(
            group, {.retention = retention, .window = window, .dtype = kv_dtype, .page_tokens = kPageTokens, .layers = {}});
      slot = {int(group - layout.groups.begin()), int(group->layers.size())};
      group->layers.push_back({s.attention.kv_heads, s.attention.qk_dim, s.attention.v_dim});
    }
  }
  return layout;
}

}  // namespace freetoken
