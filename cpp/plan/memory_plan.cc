#include "plan/memory_plan.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "plan/activations.h"
#include "plan/saturating.h"

namespace freetoken {
namespace {

constexpr int64_t kMiB = int64_t(1) << 20;
// The process itself with Python and its libraries (measured: 60-110 MB), read buffers while loading, allocator rounding.
constexpr int64_t kProcessBytes = 160 * kMiB;
constexpr int64_t kReadBufferBytes = 8 * kMiB;  // per thread, weights/loader.h
// Kernels loaded when first used, graphs, blocks of a step, what is left over in the slabs of weights.
constexpr int64_t kDeviceReserveBytes = 384 * kMiB;
constexpr int64_t kMaxPages = INT32_MAX;        // page ids are int32

std::string size(int64_t bytes) {
  char text[48];
  if (bytes >= 1024 * kMiB) {
    std::snprintf(text, sizeof text, "%.1f GiB", double(bytes) / double(1024 * kMiB));
  } else {
    std::snprintf(text, sizeof text, "%.1f MiB", double(bytes) / double(kMiB));
  }
  return text;
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
                {"available bytes", in.available_bytes, 0},
                {"available device bytes", in.device_available_bytes, 0},
                {"staging bytes", in.staging_bytes, 0},
                {"expert slots", in.expert_slots, 0},
                {"bytes of an expert slot", in.expert_slot_bytes, 0}};
  for (const auto& field : fields)
    if (field.value < field.low)
      return InvalidArgument(std::string(field.name) + " is " + std::to_string(field.value) + "; it must be at least " +
                             std::to_string(field.low));
  if (in.max_sequence_tokens > spec.max_positions)
    return InvalidArgument("max_sequence_tokens is " + std::to_string(in.max_sequence_tokens) + ", but the model has only " +
                           std::to_string(spec.max_positions) + " positions");
  return {};
}

// The memory that the weights are in: what is taken of it besides the KV pool, and what there is.
struct Pool {
  bool device = false;
  int64_t fixed_bytes = 0, available_bytes = 0;
  int64_t left_bytes() const { return std::max<int64_t>(0, available_bytes - fixed_bytes); }
};

// What to change so that it fits: the largest KV pool that does, if one does.
std::string way_out(const MemoryPlanInput& in, const Pool& pool, int64_t sequence_tokens, int64_t page_bytes) {
  const int64_t fits = pool.left_bytes() / page_bytes * in.page_tokens;
  if (fits == 0 && pool.device)
    return std::string("the weights and the working memory alone do not fit: ") +
           (in.expert_bytes > 0 ? "keep fewer experts in it with --moe-cache-size" : "use a smaller model or quantisation") +
           ", or compute on the CPU (--device cpu)";
  if (fits == 0)
    return "the weights and the working memory alone do not fit: use a smaller model or quantisation, or a machine with more "
           "memory (this version keeps all weights in memory)";
  const std::string limit = std::to_string(fits);
  if (in.kv_tokens > 0 && fits < sequence_tokens) return "lower --num-tokens and --max-seq-len-override to at most " + limit;
  if (in.kv_tokens > 0) return "lower --num-tokens to at most " + limit;
  return "lower --max-seq-len-override to at most " + limit;
}

// Pages of the KV pool, 0 where the number given has too many.
int64_t choose_pages(const MemoryPlanInput& in, const Pool& pool, int64_t sequence_pages, int64_t page_bytes) {
  if (in.kv_tokens > 0) {
    const int64_t pages = divide_up(in.kv_tokens, in.page_tokens);
    return pages > kMaxPages ? 0 : pages;
  }
  const int64_t wanted = saturating_product({in.max_running_requests, sequence_pages});
  // Half of the host's memory is for others; a device is ours.
  const int64_t share = pool.device ? pool.left_bytes() : pool.left_bytes() / 2;
  const int64_t pages = std::max(sequence_pages, std::min({wanted, share / page_bytes, kMaxPages}));
  return pages > kMaxPages ? 0 : pages;
}

}  // namespace

int64_t kv_bytes_per_token(const ModelSpec& spec, int kv_element_bytes) {
  int64_t elements = 0;
  for (const LayerSpec& layer : spec.layers)
    for (const SublayerSpec& s : layer.sublayers)
      if (s.kind == SublayerKind::kAttention)
        elements = saturating_sum(
            {elements, saturating_product({s.attention.kv_heads, int64_t(s.attention.qk_dim) + s.attention.v_dim})});
  return saturating_product({elements, kv_element_bytes});
}

Status make_memory_plan(const ModelSpec& spec, const MemoryPlanInput& in, MemoryPlan* plan) {
  *plan = {};
  FT_RETURN_IF_ERROR(check_input(spec, in));
  const int64_t sequence_tokens = in.max_sequence_tokens > 0 ? in.max_sequence_tokens : std::max(1, spec.max_positions);
  const int64_t sequence_pages = divide_up(sequence_tokens, in.page_tokens);
  const int64_t token_bytes = kv_bytes_per_token(spec, in.kv_element_bytes);
  const int64_t page_bytes = std::max<int64_t>(1, saturating_product({token_bytes, in.page_tokens}));
  if (in.kv_tokens > 0 && in.kv_tokens < sequence_tokens)
    return InvalidArgument("the KV cache of " + std::to_string(in.kv_tokens) + " tokens holds less than one sequence of " +
                           std::to_string(sequence_tokens) + " tokens; raise --num-tokens or lower --max-seq-len-override");

  const bool device = in.device_available_bytes > 0, slots = device && in.expert_slots > 0 && in.expert_bytes > 0;
  const auto row = [&](const char* what, int64_t bytes, std::string detail, bool on_device) {
    plan->rows.push_back({what, bytes, std::move(detail), on_device});
    int64_t& total = on_device ? plan->device_total_bytes : plan->total_bytes;
    total = saturating_sum({total, bytes});
  };
  row("dense weights", in.dense_bytes, "attention, feed-forward, routers, norms", device);
  const int64_t slot_bytes = saturating_product({in.expert_slots, in.expert_slot_bytes});
  if (slots) row("expert slots", slot_bytes, std::to_string(in.expert_slots) + " of " + size(in.expert_slot_bytes), true);
  if (in.expert_bytes > 0)
    row("experts", in.expert_bytes, slots ? "all, for the slots to be filled from" : "all resident", device && !slots);
  row("embeddings", in.embedding_bytes, spec.tied_embedding ? "one matrix for input and output" : "input and output", device);
  row("activations and scratch", device ? device_activation_bytes(spec, in) : cpu_activation_bytes(spec, in),
      std::to_string(in.max_batch_tokens) + " rows a step" + (device ? "" : ", " + std::to_string(in.threads) + " threads"),
      device);
  row("logits", saturating_product({in.max_logit_rows, saturating_sum({spec.vocab, 2 * int64_t(spec.hidden)}), 4}),
      std::to_string(in.max_logit_rows) + " rows of " + std::to_string(spec.vocab), device);
  const int64_t weights = saturating_sum({in.dense_bytes, slots ? slot_bytes : in.expert_bytes, in.embedding_bytes});
  if (device) row("reserve", saturating_sum({kDeviceReserveBytes, weights / 64}), "the driver's, graphs, allocator", true);
  row("reserve", saturating_sum({kProcessBytes, saturating_product({in.threads, kReadBufferBytes}), in.staging_bytes,
                                 (device ? slots ? in.expert_bytes : 0 : weights) / 64}),
      device ? "the process, read and staging buffers, allocator" : "the process, read buffers, allocator", false);

  const Pool pool = device ? Pool{true, plan->device_total_bytes, in.device_available_bytes}
                           : Pool{false, plan->total_bytes, in.available_bytes};
  const int64_t pages = choose_pages(in, pool, sequence_pages, page_bytes);
  if (pages == 0)
    return InvalidArgument("a KV cache of " + std::to_string(std::max(in.kv_tokens, sequence_tokens)) + " tokens has more than " +
                           std::to_string(kMaxPages) + " pages; lower --num-tokens");
  const int64_t kv_bytes = saturating_product({pages, page_bytes});
  plan->kv_tokens = pages * in.page_tokens;
  plan->max_sequence_tokens = int(std::min<int64_t>(sequence_tokens, INT32_MAX));
  plan->available_bytes = in.available_bytes;
  plan->device_available_bytes = in.device_available_bytes;
  row("KV cache", kv_bytes,
      std::to_string(plan->kv_tokens) + " tokens in pages of " + std::to_string(in.page_tokens) + ", " +
          std::to_string(page_bytes / in.page_tokens) + " bytes per token",
      device);

  const int64_t needed = device ? plan->device_total_bytes : plan->total_bytes;
  const int64_t rest = needed - std::min(needed, saturating_sum({weights, kv_bytes}));
  if (needed > pool.available_bytes)
    return ResourceExhausted("serving needs " + size(needed) + (device ? " of the GPU's memory and " : " of memory and ") +
                             size(pool.available_bytes) + " is available (weights " + size(weights) + ", KV cache of " +
                             std::to_string(plan->kv_tokens) + " tokens " + size(kv_bytes) + ", the rest " + size(rest) + "); " +
                             way_out(in, pool, sequence_tokens, page_bytes));
  if (plan->total_bytes > in.available_bytes)
    return ResourceExhausted("serving needs " + size(plan->total_bytes) + " of the host's memory and " + size(in.available_bytes) +
                             " is available" + (slots ? " (experts " + size(in.expert_bytes) + ")" : "") +
                             "; use a smaller model or quantisation, or a machine with more memory");
  return {};
}

}  // namespace freetoken
