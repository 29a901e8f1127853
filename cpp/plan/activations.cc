#include "plan/activations.h"

#include <algorithm>

#include "plan/saturating.h"

namespace freetoken {
namespace {

constexpr int64_t kThreadScratchBytes = int64_t(3) << 20;
constexpr int64_t kPadding = 31;  // rows of device scratch begin at multiples of 32 floats
// As in cuda/ops/scratch: attention of so few rows is split in partitions of so many tokens, up to so many floats.
constexpr int64_t kSplitRows = 8, kPartitionTokens = 256, kMostAttentionFloats = int64_t(1) << 25;
constexpr int64_t kSampleRows = 64;  // of the vocabulary, that sampling works in

// The widest rows of a step over all layers, in elements.
struct Widths {
  int64_t attention = 0;  // q, k, v and the attention output
  int64_t input = 0;      // of the widest matmul outside the feed-forward
  int64_t inner = 0;      // of a feed-forward, times experts per token
  int64_t per_token = 1, experts = 0, rope = 0;
  int64_t attention_out = 0, heads = 0;
};

Widths widths(const ModelSpec& spec) {
  Widths w;
  w.input = spec.hidden;
  for (const RopeTable& table : spec.rope_tables) w.rope = saturating_sum({w.rope, 2 * int64_t(table.inv_freq.size())});
  for (const LayerSpec& layer : spec.layers)
    for (const SublayerSpec& s : layer.sublayers) {
      if (s.kind == SublayerKind::kAttention) {
        const AttentionSpec& a = s.attention;
        const int64_t out = saturating_product({a.q_heads, a.v_dim});
        w.attention_out = std::max(w.attention_out, out);
        w.heads = std::max<int64_t>(w.heads, a.q_heads);
        w.attention = std::max(w.attention, saturating_sum({saturating_product({a.q_heads, a.qk_dim}), out,
                                                            saturating_product({a.kv_heads, int64_t(a.qk_dim) + a.v_dim})}));
        w.input = std::max(w.input, out);
      } else if (s.kind == SublayerKind::kMlp) {
        w.inner = std::max<int64_t>(w.inner, s.mlp.inner);
      } else if (s.kind == SublayerKind::kMoe) {
        w.inner = std::max({w.inner, saturating_product({s.moe.inner, s.moe.experts_per_token}), int64_t(s.moe.shared_inner)});
        w.per_token = std::max<int64_t>(w.per_token, s.moe.experts_per_token);
        w.experts = std::max<int64_t>(w.experts, s.moe.experts);
      }
    }
  return w;
}

// Floats of a row that the model itself keeps.
int64_t model_row(const ModelSpec& spec, const Widths& w) {
  return saturating_sum({saturating_product({5, spec.hidden}), w.attention, w.experts, w.rope, 512});
}

}  // namespace

int64_t cpu_activation_bytes(const ModelSpec& spec, const MemoryPlanInput& in) {
  const Widths w = widths(spec);
  // Outputs of experts that wait for their sum.
  const int64_t kept = w.experts > 1 ? saturating_product({w.per_token, spec.hidden}) : 0;
  const int64_t row = saturating_sum({model_row(spec, w), kept, saturating_product({2, w.input}), w.inner});
  const int64_t rows = saturating_product({in.max_batch_tokens, row, 4});
  // A thread's accumulators: 256 floats a row, and 32 floats for each of a row's experts.
  const int64_t scratch = saturating_product({in.max_batch_tokens, std::max<int64_t>(256, 32 * w.per_token), 4});
  return saturating_sum({rows, saturating_product({in.threads, saturating_sum({scratch, kThreadScratchBytes})})});
}

int64_t device_activation_bytes(const ModelSpec& spec, const MemoryPlanInput& in) {
  const Widths w = widths(spec);
  const int64_t inner = saturating_product({3, saturating_sum({w.inner, saturating_product({w.per_token, kPadding})})});
  // Both lanes, with the choice, its weight and its place in the groups.
  const int64_t experts =
      w.experts == 0 ? 0
                     : saturating_sum({saturating_product({2, w.per_token, int64_t(spec.hidden) + kPadding}),
                                       saturating_product({8, w.per_token}), w.experts, kPadding});
  const int64_t row = saturating_sum({model_row(spec, w), inner, experts});
  const int64_t partitions = divide_up(std::max(1, spec.max_positions), kPartitionTokens);
  const int64_t attention = saturating_product({std::min(in.max_batch_tokens, kSplitRows), partitions,
                                                saturating_sum({w.attention_out, saturating_product({2, w.heads})})});
  // The history of a sequence with penalties: a count for each id.
  const int64_t samplers = saturating_product({saturating_sum({in.max_running_requests, kSampleRows}), int64_t(spec.vocab) + 1024});
  const int64_t floats =
      saturating_sum({saturating_product({in.max_batch_tokens, row}), std::min(attention, kMostAttentionFloats), samplers});
  return saturating_sum({saturating_product({floats, 4}), saturating_product({16, w.experts})});
}

}  // namespace freetoken
