// ISA levels: which exist in this build, which this CPU runs, which one is used.
#pragma once
#include <string>
#include <vector>

#include "core/status.h"

namespace freetoken {

// Ordered: a later level is preferred. avx2 = AVX2, FMA, F16C; avx512 = F, BW, DQ, VL; avx512vnni and avx512bf16 need
// VNNI (and VBMI, BF16) on top.
enum class IsaLevel { kScalar, kAvx2, kAvx2Vnni, kAvx512, kAvx512Vnni, kAvx512Bf16 };
constexpr int kIsaLevels = 6;

const char* isa_name(IsaLevel level);
bool isa_supported(IsaLevel level);
std::vector<IsaLevel> supported_isa_levels();

// The best supported level, or the one named by FREETOKEN_CPU_ISA; kUnsupported when the CPU lacks that one,
// kInvalidArgument when there is no such name.
Result<IsaLevel> select_isa_level();

}  // namespace freetoken
