// What loading and serving a model takes, before anything is loaded. Pure arithmetic; safe for absurd numbers.
#pragma once
#include <cstdint>

#include "freetoken/engine.h"
#include "spec/model_spec.h"

namespace freetoken {

struct MemoryPlanInput {
  // Packed bytes, from weights/load_plan.h.
  int64_t dense_bytes = 0, expert_bytes = 0, embedding_bytes = 0;
  int kv_element_bytes = 2;
  int page_tokens = 64;
  int64_t kv_tokens = 0;            // 0 = chosen here
  int64_t max_sequence_tokens = 0;  // 0 = the model's max_positions
  int64_t max_batch_tokens = 512;
  int64_t max_running_requests = 32;
  int64_t threads = 1;
  int64_t available_bytes = 0;
  int64_t max_logit_rows = 64;      // rows of logits computed at once

  // Of a device with memory of its own, where weights, KV pool and activations lie then; 0 = there is none.
  int64_t device_available_bytes = 0;
  int64_t staging_bytes = 0;        // host memory through which weights go to it
  int64_t expert_slots = 0;         // experts in its memory at once, the others in the host's; 0 = all of them
  int64_t expert_slot_bytes = 0;    // the largest expert
};

// KV bytes one token takes over all attention layers: sum of kv_heads * (qk_dim + v_dim) * element bytes.
int64_t kv_bytes_per_token(const ModelSpec& spec, int kv_element_bytes);

// Fills *plan. kv_tokens 0 becomes min(max_running * max_sequence, what the memory left after everything else holds: half of
// it in the host, which others use too, all of it on a device), in whole pages, and at least one full sequence.
// kResourceExhausted when it does not fit: needed and available bytes and the options that help; *plan is filled then too.
// kInvalidArgument for numbers that make no sense, and for a pool that holds less than one sequence.
Status make_memory_plan(const ModelSpec& spec, const MemoryPlanInput& input, MemoryPlan* plan);

}  // namespace freetoken
