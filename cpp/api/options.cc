#include "api/options.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "api/device.h"
#include "api/guard.h"
#include "model/support.h"
#include "plan/memory_plan.h"
#include "platform/memory_limits.h"
#include "platform/topology.h"

namespace freetoken {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kMaxThreadsPerCore = 4;  // 1000 threads on 2 cores take minutes for a step: all wait for each other
constexpr int kMaxRunning = 4096;
constexpr int kMaxQueued = 1 << 20;
constexpr int kMaxBatchTokens = 65536;

Status in_range(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return InvalidArgument(std::string(name) + " is " + std::to_string(value) + ", it must be in " + std::to_string(low) + ".." +
                         std::to_string(high));
}

// Each loading thread stages a span at a time: the largest ones at worst.
int64_t staging_bytes(const LoadPlan& plan, int threads) {
  std::vector<int64_t> spans;
  for (const LoadItem& item : plan.items) spans.push_back(item.packed_bytes());
  const size_t count = std::min(spans.size(), size_t(threads));
  std::partial_sort(spans.begin(), spans.begin() + ptrdiff_t(count), spans.end(), std::greater<>());
  return std::accumulate(spans.begin(), spans.begin() + ptrdiff_t(count), int64_t(0));
}

}  // namespace

Status check_vocab(const LoadOptions& options, const ModelSpec& spec) {
  if (options.vocab.bytes.size() != options.vocab.flags.size())
    return InvalidArgument("the vocabulary has " + std::to_string(options.vocab.bytes.size()) + " entries but " +
                           std::to_string(options.vocab.flags.size()) + " flags");
  for (int32_t id : options.eos_token_ids)
    if (id < 0 || id >= spec.vocab)
      return InvalidArgument("EOS token " + std::to_string(id) + " is outside the vocabulary 0.." +
                             std::to_string(spec.vocab - 1));
  return {};
}

Status resolve_options(const LoadOptions& options, int64_t device_available_bytes, ResolvedOptions* out) {
  FT_RETURN_IF_ERROR(in_range("threads", options.threads, 0, kMaxThreads));
  const int cores = read_topology().usable_cores;
  if (options.threads > kMaxThreadsPerCore * std::max(cores, 2))
    return InvalidArgument("threads is " + std::to_string(options.threads) + ", more than " + std::to_string(kMaxThreadsPerCore) +
                           " for each of the cores this process may use (" + std::to_string(cores) +
                           "): they would wait for each other; 0 takes one per core");
  FT_RETURN_IF_ERROR(in_range("max_running_requests", options.max_running_requests, 1, kMaxRunning));
  FT_RETURN_IF_ERROR(in_range("max_queued_requests", options.max_queued_requests, 1, kMaxQueued));
  FT_RETURN_IF_ERROR(in_range("max_itl_us", options.max_itl_us, 0, int64_t(1) << 40));
  FT_RETURN_IF_ERROR(in_range("max_batch_tokens", options.max_batch_tokens, 1, kMaxBatchTokens));
  FT_RETURN_IF_ERROR(in_range("max_sequence_tokens", options.max_sequence_tokens, 0, 1 << 30));
  FT_RETURN_IF_ERROR(in_range("kv_tokens", options.kv_tokens, 0, int64_t(1) << 40));
  FT_RETURN_IF_ERROR(in_range("memory_limit_bytes", options.memory_limit_bytes, 0, int64_t(1) << 60));
  FT_RETURN_IF_ERROR(in_range("device_ordinal", options.device_ordinal, 0, 255));
  FT_RETURN_IF_ERROR(in_range("device_memory_limit_bytes", options.device_memory_limit_bytes, 0, int64_t(1) << 60));
  FT_RETURN_IF_ERROR(in_range("expert_slots", options.expert_slots, 0, 1 << 24));
  FT_ASSIGN_OR_RETURN(out->spec, parse_model_spec(options.model_spec_json));
  FT_RETURN_IF_ERROR(check_model_supported(out->spec));
  if (options.checkpoint_directory.empty()) {
    FT_ASSIGN_OR_RETURN(out->table, parse_weight_table(options.weight_table_json));
    FT_RETURN_IF_ERROR(check_weight_files(out->table));
    FT_ASSIGN_OR_RETURN(out->load, make_load_plan(out->table, out->spec));
  } else {
    FT_ASSIGN_OR_RETURN(out->checkpoint, open_ftw(options.checkpoint_directory));
    FT_ASSIGN_OR_RETURN(out->load, make_ftw_plan(out->checkpoint));
  }
  if (options.max_sequence_tokens > out->spec.max_positions)
    return InvalidArgument("max_sequence_tokens is " + std::to_string(options.max_sequence_tokens) + ", the model has " +
                           std::to_string(out->spec.max_positions) + " positions");
  out->threads = options.threads ? options.threads : cores;
  out->max_running_requests = options.max_running_requests;
  out->max_batch_tokens = std::max(options.max_batch_tokens, options.max_running_requests);

  MemoryPlanInput input;
  input.dense_bytes = out->load.dense_bytes;
  input.expert_bytes = out->load.expert_bytes;
  input.embedding_bytes = out->load.embedding_bytes;
  input.kv_element_bytes = options.kv_dtype == KvDType::kF32 ? 4 : 2;
  input.kv_tokens = options.kv_tokens;
  input.max_sequence_tokens = options.max_sequence_tokens;
  input.max_batch_tokens = out->max_batch_tokens;
  input.max_running_requests = out->max_running_requests;
  input.threads = out->threads;
  input.available_bytes = options.memory_limit_bytes ? options.memory_limit_bytes : available_memory().bytes;
  if (device_available_bytes > 0) {
    input.device_available_bytes = device_available_bytes;
    input.staging_bytes = staging_bytes(out->load, out->threads);
    input.expert_slots = options.expert_slots;
    for (const LoadItem& item : out->load.items)
      if (item.is_extent) input.expert_slot_bytes = std::max(input.expert_slot_bytes, item.packed_bytes());
  }
  return make_memory_plan(out->spec, input, &out->memory);
}

Status check_model_spec(const std::string& json, std::string* canonical) {
  return guarded("checking the ModelSpec", [&]() -> Status {
    FT_ASSIGN_OR_RETURN(const ModelSpec spec, parse_model_spec(json));
    *canonical = model_spec_to_json(spec);
    return {};
  });
}

Status plan_memory(const LoadOptions& options, MemoryPlan* plan) {
  return guarded("planning", [&]() -> Status {
    FT_ASSIGN_OR_RETURN(const ChosenDevice chosen, choose_device(options));
    ResolvedOptions resolved;
    Status status = resolve_options(options, chosen.available_bytes, &resolved);
    if (status.code() == StatusCode::kResourceExhausted && chosen.may_fall_back) {
      resolved = {};
      status = resolve_options(options, 0, &resolved);
    }
    *plan = std::move(resolved.memory);
    return status;
  });
}

}  // namespace freetoken
