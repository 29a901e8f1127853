// LoadPlan: which packed tensors and extents a checkpoint becomes, and from which table entries.
#pragma once
#include <cstdint>
#include <vector>

#include "core/status.h"
#include "ops/weight_sink.h"
#include "spec/model_spec.h"
#include "weights/weight_table.h"

namespace freetoken {

// One packed tensor and its source: second is the up matrix of a gate_up pair, else null.
struct LoadTensor {
  PackedTensorInfo info;
  const WeightEntry* first = nullptr;
  const WeightEntry* second = nullptr;
};

// One span of a sink: a tensor on its own, or an expert.
struct LoadItem {
  bool is_extent = false;
  ExtentInfo extent;                // is_extent
  std::vector<LoadTensor> tensors;  // one, or those of extent.parts in the same order
  // >= 0: the whole span lies packed in this file of the table (weights/ftw_reader.h) and is only read.
  int packed_file = -1;
  int64_t packed_offset = 0;

  int64_t packed_bytes() const { return int64_t(is_extent ? extent.bytes : tensors[0].info.bytes()); }
};

struct LoadPlan {
  std::vector<LoadItem> items;  // by file and offset
  // Packed bytes, for the memory plan.
  int64_t dense_bytes = 0, expert_bytes = 0, embedding_bytes = 0;
  int64_t source_bytes = 0;     // what will be read
  int64_t packed_bytes() const { return dense_bytes + expert_bytes + embedding_bytes; }
};

// Checks the table against the spec: a missing or extra tensor and a wrong shape are errors that name the tensor.
// Knows attention, mlp and moe sublayers in the form that model/support.h admits; other kinds are kUnsupported.
// The plan points into `table`, which outlives it. Reads no file.
Result<LoadPlan> make_load_plan(const WeightTable& table, const ModelSpec& spec);

}  // namespace freetoken
