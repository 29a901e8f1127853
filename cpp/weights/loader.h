// Reads a checkpoint and packs it to T32: streaming, parallel, without a second copy of the model.
#pragma once
#include <cstdint>
#include <functional>

#include "core/status.h"
#include "ops/weight_sink.h"
#include "weights/load_plan.h"

namespace freetoken {

// Called now and then from one loader thread at a time, and once at the end with done == total. Bytes of the source.
using LoadProgress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

// Packs everything in the plan into the sink with `threads` threads. Beside the sink's memory it takes at most
// threads * kLoadBufferBytes. The files are read with pread, so no page of theirs counts as this process's memory.
// The first error ends the load and names file and tensor.
Status load_weights(const WeightTable& table, const LoadPlan& plan, WeightSink& sink, int threads,
                    const LoadProgress& progress);

constexpr int64_t kLoadBufferBytes = int64_t(8) << 20;

}  // namespace freetoken
