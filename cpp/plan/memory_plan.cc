#include "plan/memory_plan.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "plan/saturating.h"

namespace freetoken {
namespace {

constexpr int64_t kMiB = int64_t(1) << 20;
// The process itself with Python and its libraries (measured: 60-110 MB), read buffers while loading, allocator rounding.
constexpr int64_t kProcessBytes = 160 * kMiB;
constexpr int64_t kReadBufferBytes = 8 * kMiB;  // per thread, weights/loader.h
constexpr int64_t kThreadScratchBytes = 3 * kMiB;
constexpr int64_t kMaxPages = INT32_MAX;        // page ids are int32

std::string gib(int64_t bytes) {
  char text[48];
  if (bytes >= 1024 * kMiB) {
    std::snprintf(text, sizeof text, "%.1f GiB", double(bytes) / double(1024 * kMiB));
  } else {
    std::snprintf(text, sizeof text, "%.1f MiB", double(bytes) / double(kMiB));
  }
  return text;
}

// The widest rows of a step over all layers, in elements.
struct Widths {
  int64_t attention = 0;  // q, k, v and the attention output
  int64_t input = 0;      // of the widest matmul outside the feed-forward
  int64_t inner = 0;      // of a feed-forward, times experts per token
  int64_t per_token = 1, experts = 0, rope = 0;
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

// An upper bound of what the CPU backend reserves for a step of max_batch_tokens rows: the fp32 rows of the model (residual
// and norm of two batches, one update), the outputs of experts of a layer done in parts, the encoded inputs of its matmuls
// (at most fp32, two kinds at once) and each thread's accumulators.
int64_t activation_bytes(const ModelSpec& spec, const MemoryPlanInput& in) {
  const Widths w = widths(spec);
  const int64_t kept = w.experts > 1 ? saturating_product({w.per_token, spec.hidden}) : 0;
  const int64_t row = saturating_sum({saturating_product({5, spec.hidden}), kept, w.attention, saturating_product({2, w.input}), w.inner,
                                      w.experts, w.rope, 512});
  const int64_t rows = saturating_product({in.max_batch_tokens, row, 4});
  // A thread's accumulators: 256 floats a row, and 32 floats for each of a row's experts.
  const int64_t scratch = saturating_product({in.max_batch_tokens, std::max<int64_t>(256, 32 * w.per_token), 4});
  return saturating_sum({rows, saturating_product({in.threads, saturating_sum({scratch, kThreadScratchBytes})})});
}

Status check_input(const ModelSpec& spec, const MemoryPlanInput& in) {
  const struct {
    const char* name;
    int64_t value, low;
  } fields[] = {{"weight bytes", in.dense_bytes, 0},
                {"expert bytes", in.expert_bytes, 0},
                {"embedding bytes", in.embedding_bytes, 0},
                {"KV element bytes", in.kv_element_bytes, 1},
                {"tokens per page", in.page_tokens, 1},
                {"kv_tokens", in.kv_tokens, 0},
                {"max_sequence_tokens", in.max_sequence_tokens, 0},
                {"max_batch_tokens", in.max_batch_tokens, 1},
                {"max_running_requests", in.max_running_requests, 1},
                {"max_logit_rows", in.max_logit_rows, 1},
                {"threads", in.threads, 1},
                {"available bytes", in.available_bytes, 0}};
  for (const auto& field : fields)
    if (field.value < field.low)
      return InvalidArgument(std::string(field.name) + " is " + std::to_string(field.value) + "; it must be at least " +
                             std::to_string(field.low));
  if (in.max_sequence_tokens > spec.max_positions)
    return InvalidArgument("max_sequence_tokens is " + std::to_string(in.max_sequence_tokens) + ", but the model has only " +
                           std::to_string(spec.max_positions) + " positions");
  return {};
}

// What to change so that it fits: the largest pool that does, if one does.
std::string way_out(const MemoryPlanInput& in, int64_t sequence_tokens, int64_t left_bytes, int64_t page_bytes) {
  const int64_t fits = left_bytes > 0 ? left_bytes / page_bytes * in.page_tokens : 0;
  if (fits == 0)
    return "the weights and the working memory alone do not fit: use a smaller model or quantisation, or a machine with more "
           "memory (this version keeps all weights in memory)";
  const std::string limit = std::to_string(fits);
  if (in.kv_tokens > 0 && fits < sequence_tokens) return "lower --num-tokens and --max-seq-len-override to at most " + limit;
  if (in.kv_tokens > 0) return "lower --num-tokens to at most " + limit;
  return "lower --max-seq-len-override to at most " + limit;
}

}  // namespace

int64_t kv_bytes_per_token(const ModelSpec& spec, int kv_element_bytes) {
  int64_t elements = 0;
  for (const LayerSpec& layer : spec.layers)
    for (const SublayerSpec& s : layer.sublayers)
      if (s.kind == SublayerKind::kAttention)
        elements = saturating_sum({elements, saturating_product({s.attention.kv_heads, int64_t(s.attention.qk_dim) + s.attention.v_dim})});
  return saturating_product({elements, kv_element_bytes});
}

Status make_memory_plan(const ModelSpec& spec, const MemoryPlanInput& in, MemoryPlan* plan) {
  *plan = {};
  FT_RETURN_IF_ERROR(check_input(spec, in));
  const int64_t sequence_tokens = in.max_sequence_tokens > 0 ? in.max_sequence_tokens : std::max(1, spec.max_positions);
  const int64_t sequence_pages = divide_up(sequence_tokens, in.page_tokens);
  const int64_t page_bytes = std::max<int64_t>(1, saturating_product({kv_bytes_per_token(spec, in.kv_element_bytes), in.page_tokens}));
  if (in.kv_tokens > 0 && in.kv_tokens < sequence_tokens)
    return InvalidArgument("the KV cache of " + std::to_string(in.kv_tokens) + " tokens holds less than one sequence of " +
                           std::to_string(sequence_tokens) + " tokens; raise --num-tokens or lower --max-seq-len-override");

  const int64_t weights = saturating_sum({in.dense_bytes, in.expert_bytes, in.embedding_bytes});
  const int64_t activations = activation_bytes(spec, in);
  const int64_t logits = saturating_product({in.max_logit_rows, saturating_sum({spec.vocab, 2 * int64_t(spec.hidden)}), 4});
  const int64_t reserve = saturating_sum({kProcessBytes, saturating_product({in.threads, kReadBufferBytes}), weights / 64});
  const int64_t fixed = saturating_sum({weights, activations, logits, reserve});
  const int64_t left = std::max<int64_t>(0, in.available_bytes - fixed);

  int64_t pages = divide_up(in.kv_tokens, in.page_tokens);
  if (pages == 0) {
    const int64_t wanted = saturating_product({in.max_running_requests, sequence_pages});
    pages = std::max(sequence_pages, std::min({wanted, left / 2 / page_bytes, kMaxPages}));
  }
  if (pages > kMaxPages)
    return InvalidArgument("a KV cache of " + std::to_string(in.kv_tokens) + " tokens has more than " + std::to_string(kMaxPages) +
                           " pages; lower --num-tokens");
  const int64_t kv_bytes = saturating_product({pages, page_bytes});

  plan->kv_tokens = pages * in.page_tokens;
  plan->max_sequence_tokens = int(std::min<int64_t>(sequence_tokens, INT32_MAX));
  plan->available_bytes = in.available_bytes;
  plan->total_bytes = saturating_sum({fixed, kv_bytes});
  const auto row = [&](const char* what, int64_t bytes, std::string detail) {
    plan->rows.push_back({what, bytes, std::move(detail)});
  };
  row("dense weights", in.dense_bytes, "attention, feed-forward, routers, norms");
  if (in.expert_bytes > 0) row("experts", in.expert_bytes, "all resident");
  row("embeddings", in.embedding_bytes, spec.tied_embedding ? "one matrix for input and output" : "input and output");
  row("KV cache", kv_bytes, std::to_string(plan->kv_tokens) + " tokens in pages of " + std::to_string(in.page_tokens) + ", " +
                                std::to_string(page_bytes / in.page_tokens) + " bytes per token");
  row("activations and scratch", activations,
      std::to_string(in.max_batch_tokens) + " rows a step, " + std::to_string(in.threads) + " threads");
  row("logits", logits, std::to_string(in.max_logit_rows) + " rows of " + std::to_string(spec.vocab));
  row("reserve", reserve, "the process, read buffers, allocator");
  if (plan->total_bytes <= in.available_bytes) return {};
  return ResourceExhausted("serving needs " + gib(plan->total_bytes) + " of memory and " + gib(in.available_bytes) +
                           " is available (weights " + gib(weights) + ", KV cache of " + std::to_string(plan->kv_tokens) + " tokens " +
                           gib(kv_bytes) + ", the rest " + gib(plan->total_bytes - std::min(plan->total_bytes, saturating_sum({weights, kv_bytes}))) +
                           "); " + way_out(in, sequence_tokens, in.available_bytes - fixed, page_bytes));
}

}  // namespace freetoken
