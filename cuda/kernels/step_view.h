// StepView: what kernels see of a step's batch. All of it is data at fixed device addresses, so a captured step replays
// with new contents; only counts are launch arguments.
#pragma once
#include <cstdint>

namespace freetoken::cuda {

struct StepView {
  const int32_t* row_token = nullptr;     // [rows] BatchRow::token
  const int32_t* row_position = nullptr;  // [rows]
  const int32_t* row_sequence = nullptr;  // [rows]; rows of one sequence are consecutive and in position order
  const int32_t* sampled = nullptr;       // what the rows of the last step that sampled drew; -1 = nothing
  // Page ids of group g and sequence s in position order at page_table + g * group_stride + s * sequence_stride. Entries
  // of positions that no row of the step sees are never read.
  const int32_t* page_table = nullptr;
  int64_t group_stride = 0, sequence_stride = 0;
};

}  // namespace freetoken::cuda
