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

// One group of the layers that see everything, and one for each length of window below the model's positions.
KvLayout make_kv_layout(const ModelSpec& spec, DType kv_dtype);

}  // namespace freetoken
