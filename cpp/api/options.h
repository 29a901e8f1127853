// LoadOptions after parsing: what both plan_memory and Engine::load start from.
#pragma once
#include "core/status.h"
#include "freetoken/engine.h"
#include "spec/model_spec.h"
#include "weights/load_plan.h"
#include "weights/weight_table.h"

namespace freetoken {

struct ResolvedOptions {
  ModelSpec spec;
  WeightTable table;
  LoadPlan load;        // points into table
  MemoryPlan memory;
  int threads = 1;
  int max_running_requests = 1;
  int max_batch_tokens = 1;
  int max_logit_rows = 64;
};

// Parses and checks everything that can be known without reading a weight. `out` is filled as far as it got.
Status resolve_options(const LoadOptions& options, ResolvedOptions* out);

}  // namespace freetoken
