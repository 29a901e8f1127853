// How a gated feed-forward lies packed: which tensors there are, and where they are in an expert's extent.
#pragma once
#include <string>
#include <vector>

#include "core/status.h"
#include "ops/experts.h"
#include "ops/weight_sink.h"

namespace freetoken {

// The packed tensors of a feed-forward: gate and up as one matrix where they have one format.
inline std::vector<PackedTensorInfo> gated_tensors(const std::string& prefix, WeightFormat gate, WeightFormat up,
                                                   WeightFormat down, int inner, int hidden) {
  const PackedTensorInfo last{prefix + "down", false, down, hidden, inner};
  if (gate == up) return {{prefix + "gate_up", false, gate, 2 * int(align_up(size_t(inner), kTileRows / 2)), hidden}, last};
  return {{prefix + "gate", false, gate, inner, hidden}, {prefix + "up", false, up, inner, hidden}, last};
}

// What a device needs to know of an extent with these tensors. kUnsupported for any other.
inline Result<ExpertLayout> expert_layout(const ExtentInfo& extent) {
  ExpertLayout layout;
  layout.bytes = int64_t(extent.bytes);
  for (const ExtentPart& part : extent.parts) {
    const std::string role = part.tensor.name.substr(part.tensor.name.rfind('.') + 1);
    if (role == "gate_up" || role == "gate") {
      layout.gate_format = part.tensor.format;
      layout.gate_offset = int64_t(part.offset);
      if (role == "gate_up") layout.up_format = part.tensor.format;
    } else if (role == "up") {
      layout.up_format = part.tensor.format;
      layout.up_offset = int64_t(part.offset);
    } else if (role == "down") {
      layout.down_format = part.tensor.format;
      layout.down_offset = int64_t(part.offset);
      layout.hidden = part.tensor.n;
      layout.inner = part.tensor.k;
    } else {
      return Unsupported("expert tensor " + part.tensor.name + ": no device has a use for it in this version");
    }
  }
  return layout;
}

}  // namespace freetoken
