#include "cuda/ops/scratch.h"

#include <algorithm>

#include "cuda/kernels/attention.h"
#include "cuda/kernels/moe_matmul.h"
#include "cuda/kernels/sample.h"

namespace freetoken::cuda {
namespace {

// Attention of few rows over very long contexts takes the form that needs no scratch instead of more than this.
constexpr int64_t kMostAttentionFloats = int64_t(1) << 25;

}  // namespace

Status Scratch::reserve(MemoryAccount& account, const OpsLimits& limits, const ModelSpec& spec, int vocab) {
  const int64_t rows = limits.max_rows;
  int64_t entries = 0, max_experts = 0;
  bool moe = false;
  inner_floats = attention_floats = 0;
  const int partitions = (spec.max_positions + kAttentionPartition - 1) / kAttentionPartition;
  for (const LayerSpec& layer : spec.layers)
    for (const SublayerSpec& s : layer.sublayers) {
      if (s.kind == SublayerKind::kAttention)
        attention_floats = std::max(attention_floats, attention_scratch_floats(std::min<int>(limits.max_rows, kSplitRows),
                                                                               s.attention.q_heads, s.attention.v_dim, partitions));
      if (s.kind == SublayerKind::kMlp) inner_floats = std::max(inner_floats, rows * scratch_stride(s.mlp.inner));
      if (s.kind == SublayerKind::kMoe) {
        moe = true;
        entries = std::max(entries, rows * s.moe.experts_per_token);
        max_experts = std::max<int64_t>(max_experts, s.moe.experts);
        inner_floats = std::max(inner_floats, rows * s.moe.experts_per_token * scratch_stride(s.moe.inner));
      }
    }
  attention_floats = std::min(attention_floats, kMostAttentionFloats);
  auto make = [&](DeviceBuffer* buffer, size_t bytes) -> Status {
    FT_ASSIGN_OR_RETURN(*buffer, DeviceBuffer::allocate(account, "scratch memory", bytes));
    return {};
  };
  FT_RETURN_IF_ERROR(make(&attention, size_t(attention_floats) * sizeof(float)));
  FT_RETURN_IF_ERROR(make(&inner, size_t(inner_floats) * sizeof(float)));
  FT_RETURN_IF_ERROR(make(&wide, size_t(inner_floats) * 2 * sizeof(float)));
  FT_RETURN_IF_ERROR(make(&sample, size_t(sample_scratch_bytes(vocab))));
  if (!moe) return {};
  FT_RETURN_IF_ERROR(make(&router_logits, size_t(rows * scratch_stride(int(max_experts))) * sizeof(float)));
  FT_RETURN_IF_ERROR(make(&groups, expert_groups_bytes(int(entries), int(max_experts))));
  for (int lane = 0; lane < kLanes; lane++) {
    FT_RETURN_IF_ERROR(make(&lanes[lane].ids, size_t(entries) * sizeof(int32_t)));
    FT_RETURN_IF_ERROR(make(&lanes[lane].weights, size_t(entries) * sizeof(float)));
    if (lane == 0 || limits.partial_moe)
      FT_RETURN_IF_ERROR(make(&lanes[lane].outputs, size_t(entries * scratch_stride(spec.hidden)) * sizeof(float)));
  }
  return {};
}

}  // namespace freetoken::cuda
