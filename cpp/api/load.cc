// The composition root: chooses the device, loads the weights into it, puts the engine together.
#include <algorithm>

#include "api/device.h"
#include "api/guard.h"
#include "api/options.h"
#include "core/log.h"
#include "engine/engine_loop.h"
#include "model/kv_layout.h"
#include "weights/loader.h"

namespace freetoken {
namespace {

std::vector<uint8_t> usable_tokens(const Vocab& vocab, int rows) {
  std::vector<uint8_t> usable(rows, vocab.bytes.empty());
  for (size_t id = 0; id < vocab.flags.size() && id < usable.size(); id++) usable[id] = !(vocab.flags[id] & Vocab::kUnused);
  return usable;
}

// Loads the weights into `ops` and puts the engine around it. `options` is as before where it fails.
Status build(LoadOptions& options, const ResolvedOptions& resolved, std::unique_ptr<Ops> ops, std::shared_ptr<EventSink> sink,
             std::unique_ptr<Engine>* engine) {
  FT_RETURN_IF_ERROR(load_weights(resolved.weight_files(), resolved.load, *ops, resolved.threads, [&](int64_t done, int64_t total) {
    if (options.progress) options.progress("weights", done, total);
  }));
  const ModelLimits limits{.max_rows = resolved.max_batch_tokens,
                           .max_sequences = resolved.max_running_requests,
                           .sampler_slots = resolved.max_running_requests,
                           .max_logit_rows = resolved.max_logit_rows,
                           .kv_dtype = options.kv_dtype == KvDType::kF32 ? DType::kF32 : DType::kBF16};
  FT_ASSIGN_OR_RETURN(auto model, Model::create(resolved.spec, *ops, limits));
  const int pages = int(resolved.memory.kv_tokens / kPageTokens);
  const std::vector<int32_t> group_pages(model->kv_layout().groups.size(), pages);
  FT_RETURN_IF_ERROR(ops->allocate_kv(model->kv_layout().groups, group_pages));

  EngineParts parts;
  parts.ops = std::move(ops);
  parts.model = std::move(model);
  parts.vocab = std::move(options.vocab);
  parts.eos_token_ids = std::move(options.eos_token_ids);
  parts.limits = {.max_running = resolved.max_running_requests,
                  .max_rows = resolved.max_batch_tokens,
                  .max_itl_us = options.max_itl_us,
                  .units = parts.model->units(),
                  .chaos_seed = options.chaos_seed};
  parts.kv = {.groups = parts.model->kv_layout().groups, .pages = group_pages, .prefix_cache = options.prefix_cache};
  parts.max_queued = options.max_queued_requests;
  parts.drafts = options.drafts;
  parts.max_logit_rows = resolved.max_logit_rows;
  parts.max_sequence_tokens = resolved.memory.max_sequence_tokens;
  parts.sink = std::move(sink);
  *engine = std::make_unique<EngineLoop>(std::move(parts));
  return {};
}

struct Attempt {
  Status status;
  bool opened = false;
};

// `options` is as before where it fails.
Attempt load_on(const ChosenDevice& chosen, LoadOptions& options, const std::shared_ptr<EventSink>& sink,
                std::unique_ptr<Engine>* engine) {
  ResolvedOptions resolved;
  if (Status status = resolve_options(options, chosen.available_bytes, &resolved); !status.ok()) return {status, true};
  if (Status status = check_vocab(options, resolved.spec); !status.ok()) return {status, true};
  Result<std::unique_ptr<Ops>> ops =
      open_device(chosen, {.threads = resolved.threads,
                           .float32_activations = options.activations == ActivationMode::kFloat32,
                           .usable_tokens = usable_tokens(options.vocab, resolved.spec.vocab),
                           .ordinal = options.device_ordinal,
                           .memory_limit_bytes = options.device_memory_limit_bytes,
                           .expert_slots = options.expert_slots});
  if (!ops.ok()) return {ops.status()};
  return {build(options, resolved, std::move(*ops), sink, engine), true};
}

Status load(LoadOptions& options, const std::shared_ptr<EventSink>& sink, std::unique_ptr<Engine>* engine) {
  FT_ASSIGN_OR_RETURN(const ChosenDevice chosen, choose_device(options));
  if (!chosen.no_gpu.ok())  // a CPU-only installation is no news
    log(chosen.expected ? LogLevel::kInfo : LogLevel::kWarning, "computing on the CPU: " + chosen.no_gpu.message());
  const Attempt first = load_on(chosen, options, sink, engine);
  const StatusCode code = first.status.code();
  const bool refused = code == StatusCode::kUnsupported || code == StatusCode::kResourceExhausted;
  if (!refused || !chosen.may_fall_back) return first.status;
  log(LogLevel::kWarning, std::string("computing on the CPU") + (first.opened ? ", the GPU cannot serve this model: " : ": ") +
                              first.status.message());
  return load_on({}, options, sink, engine).status;
}

}  // namespace

Status Engine::load(LoadOptions options, std::shared_ptr<EventSink> sink, std::unique_ptr<Engine>* engine) {
  return guarded("loading", [&] { return freetoken::load(options, sink, engine); });
}

}  // namespace freetoken
