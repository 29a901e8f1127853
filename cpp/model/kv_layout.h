// Which KV group and which layer of it each attention sublayer of a model uses.
#pragma once
#include <vector>

#include "ops/kv_group.h"
#include "spec/model_spec.h"

namespace freetoken {

constexpr int kPageTokens = 64;

struct KvSlot {
  int group = -1, layer = -1;
};
struct KvLayout {
  std::vector<KvGroup> groups;
  std::vector<std::vector<KvSlot>> slots;  // [layer][sublayer]; group -1 where there is no cache
};

// One group of all attention layers: windowed layers keep everything too, the mask limits what they see.
KvLayout make_kv_layout(const ModelSpec& spec, DType kv_dtype);

}  // namespace freetoken
