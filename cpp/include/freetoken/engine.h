// Engine: loads a model and serves requests. Thread-safe; no exception crosses it.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "freetoken/request.h"
#include "freetoken/status.h"
#include "freetoken/vocab.h"

#define FREETOKEN_API __attribute__((visibility("default")))

namespace freetoken {

enum class KvDType { kBF16, kF32 };
enum class ActivationMode { kAuto, kFloat32 };
enum class DeviceMode { kAuto, kCpu, kCuda };  // kAuto: a GPU where there is one that works (freetoken/device.h)

struct LoadOptions {
  std::string model_spec_json;    // spec/model_spec.h
  std::string weight_table_json;  // weights/weight_table.h
  std::string checkpoint_directory;  // an FTW checkpoint in place of the table: read_checkpoint() in freetoken/checkpoint.h
  Vocab vocab;
  std::vector<int32_t> eos_token_ids;
  int threads = 0;                // 0 = one per physical core this process may use
  KvDType kv_dtype = KvDType::kBF16;
  ActivationMode activations = ActivationMode::kAuto;
  int max_running_requests = 32;
  int max_queued_requests = 1024; // submit() beyond it fails with kResourceExhausted
  int max_batch_tokens = 512;     // rows of one step: running decodes + prefill chunk
  int64_t max_itl_us = 500'000;   // prefill work is cut so that running requests wait no longer for their next token; 0 = off
  bool prefix_cache = true;
  bool drafts = true;             // n-gram drafts, per request only while they gain
  int max_sequence_tokens = 0;    // prompt + completion; 0 = the model's max_positions
  int64_t kv_tokens = 0;          // capacity of the KV pool; 0 = one full sequence, or more where memory allows
  int64_t memory_limit_bytes = 0; // 0 = what the machine and the cgroup have
  DeviceMode device = DeviceMode::kAuto;
  int device_ordinal = 0;         // which GPU
  int64_t device_memory_limit_bytes = 0;  // of the GPU's memory; 0 = what is free
  int expert_slots = 0;           // experts in the GPU's memory at once, over all layers; 0 = all of them
  std::string device_library;     // a shared object with another device (ops/device_entry.h) in place of `device`
  uint64_t chaos_seed = 0;        // tests: legal but random scheduling (chunks, layer ranges, preemptions, drafts); 0 = off
  std::function<void(const std::string& phase, int64_t done_bytes, int64_t total_bytes)> progress;
};

struct PlanRow {
  std::string what;
  int64_t bytes = 0;
  std::string detail;
  bool on_device = false;         // in the memory of a GPU
};
struct MemoryPlan {
  std::vector<PlanRow> rows;
  int64_t total_bytes = 0;        // of the rows in the host's memory
  int64_t available_bytes = 0;
  int64_t device_total_bytes = 0; // of those in the GPU's; 0 where none computes
  int64_t device_available_bytes = 0;
  int64_t kv_tokens = 0;
  int max_sequence_tokens = 0;
};

struct EngineStats {
  int waiting = 0, running = 0;
  int64_t kv_pages_total = 0, kv_pages_used = 0;
  int page_tokens = 0;
  int64_t kv_pages_cached = 0;    // of the used ones: held by the prefix cache alone, free on demand
  int64_t steps = 0, prompt_tokens = 0, completion_tokens = 0;
  int64_t cached_prompt_tokens = 0, preemptions = 0;
  int64_t draft_tokens = 0, accepted_draft_tokens = 0;
  int64_t step_us = 0;            // time in steps, and of it
  int64_t device_us = 0;          // in the forward pass, logits and sampling; the rest is the engine's own
  int64_t weight_bytes = 0;
  int vocab = 0;
  int threads = 0;
  std::string device;             // "cpu", "cuda" ...
  std::string isa;
  bool batch_invariant = false;   // a request's bits do not depend on what else is in the batch
};

// What load() would take, from the spec and the table alone. kResourceExhausted when it does not fit, with the numbers.
FREETOKEN_API Status plan_memory(const LoadOptions& options, MemoryPlan* plan);

// Parses a ModelSpec strictly; *canonical is its shortest JSON form.
FREETOKEN_API Status check_model_spec(const std::string& json, std::string* canonical);

class FREETOKEN_API Engine {
 public:
  static Status load(LoadOptions options, std::shared_ptr<EventSink> sink, std::unique_ptr<Engine>* engine);
  virtual ~Engine() = default;

  // Validates and queues. Errors are kInvalidArgument (the request), kResourceExhausted (the queue is full), kCancelled
  // (shut down) or kInternal (engine died).
  virtual Status submit(Request request, RequestId* id) = 0;
  // The request's last event has FinishReason::kCancelled, unless it had already finished. Unknown ids are ignored.
  virtual void cancel(RequestId id) = 0;
  virtual EngineStats stats() const = 0;
  // Ok while the engine thread lives, otherwise why it died.
  virtual Status health() const = 0;
  // Cancels what runs and joins the engine thread. The destructor calls it.
  virtual void shutdown() = 0;
};

}  // namespace freetoken
