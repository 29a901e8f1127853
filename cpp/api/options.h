// LoadOptions after parsing: what both plan_memory and Engine::load start from.
#pragma once
#include "core/status.h"
#include "freetoken/engine.h"
#include "spec/model_spec.h"
#include "weights/ftw_reader.h"
#include "weights/load_plan.h"
#include "weights/weight_table.h"

namespace freetoken {

struct ResolvedOptions {
  ModelSpec spec;
  WeightTable table;
  FtwCheckpoint checkpoint;  // of which the table is, when there is one
  LoadPlan load;        // points into table or checkpoint
  MemoryPlan memory;
  const WeightTable& weight_files() const { return checkpoint.directory.empty() ? table : checkpoint.table; }
  int threads = 1;
  int max_running_requests = 1;
  int max_batch_tokens = 1;
  int max_logit_rows = 64;
};

// The vocabulary and the EOS ids against the model.
Status check_vocab(const LoadOptions& options, const ModelSpec& spec);

// Parses and checks everything that can be known without reading a weight. `device_available_bytes`: of the device that computes
// (api/device.h), 0 for the host's memory. `out` is filled as far as it got.
Status resolve_options(const LoadOptions& options, int64_t device_available_bytes, ResolvedOptions* out);

}  // namespace freetoken
