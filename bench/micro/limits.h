// The floors kernels are measured against, taken in the same run: reading memory, and the dot-product peak of a level.
#pragma once
#include <cstddef>
#include <cstdint>

#include "platform/cpu_features.h"

namespace freetoken::bench {

// Reads bytes (a multiple of 256) with the widest loads of the level, as fast as one thread can.
void read_memory(IsaLevel level, const uint8_t* data, size_t bytes);

enum class DotType { kFp32, kBf16, kInt8 };

// Runs `loops` rounds of independent dot products held in registers; returns the multiply-add operations done (two per
// product). Levels without the instruction run what stands for it: fp32 fma for bf16, multiply-add pairs for int8.
double run_dots(IsaLevel level, DotType type, int64_t loops);

}  // namespace freetoken::bench
