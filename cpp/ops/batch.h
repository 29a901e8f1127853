// Batch: the metadata of one step. Rows of one sequence are consecutive and in position order.
#pragma once
#include <cstdint>
#include <span>

namespace freetoken {

struct BatchRow {
  int32_t sequence = 0;   // index into Batch::sequences
  int32_t position = 0;
  // >= 0: the id; < 0: what row ~token of the last step that sampled drew, counted over all its sample() calls
  int32_t token = 0;
  bool wants_logits = false;
};

struct BatchSequence {
  int32_t first_row = 0, row_count = 0;
  // Page ids covering positions 0 .. last row's position, one list per KV group, each of pages_per_group entries.
  const int32_t* const* pages = nullptr;
};

struct Batch {
  std::span<const BatchRow> rows;
  std::span<const BatchSequence> sequences;
};

}  // namespace freetoken
