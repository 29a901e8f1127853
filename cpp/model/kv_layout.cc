#include "model/kv_layout.h"

namespace freetoken {

KvLayout make_kv_layout(const ModelSpec& spec, DType kv_dtype) {
  KvLayout layout;
  KvGroup all{.retention = Retention::kAll, .dtype = kv_dtype, .page_tokens = kPageTokens};
  for (const LayerSpec& layer : spec.layers) {
    std::vector<KvSlot>& slots = layout.slots.emplace_back();
    for (const SublayerSpec& s : layer.sublayers) {
      KvSlot& slot = slots.emplace_back();
      if (s.kind != SublayerKind::kAttention) continue;
      slot = {0, int(all.layers.size())};
      all.layers.push_back({s.attention.kv_heads, s.attention.qk_dim, s.attention.v_dim});
    }
  }
  layout.groups.push_back(std::move(all));
  return layout;
}

}  // namespace freetoken
