// Upper bounds of the memory that a step works in. Pure arithmetic; safe for absurd numbers.
#pragma once
#include <cstdint>

#include "plan/memory_plan.h"

namespace freetoken {

// Of the CPU backend: the fp32 rows of the model (residual and norm of two batches, one update), the outputs of experts of a
// layer done in parts, the encoded inputs of its matmuls (at most fp32, two kinds at once), each thread's accumulators.
int64_t cpu_activation_bytes(const ModelSpec& spec, const MemoryPlanInput& input);

// Of the CUDA backend, in device memory: the same rows of the model, and what cuda/ops reserves: gate and up with and without
// their activation, the outputs of experts for both lanes, partitions of attention, and what sampling keeps of a sequence.
int64_t device_activation_bytes(const ModelSpec& spec, const MemoryPlanInput& input);

}  // namespace freetoken
