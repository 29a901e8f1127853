#include "platform/cpu_features.h"

#include <cpuid.h>

#include <cstdint>
#include <cstdlib>

namespace freetoken {
namespace {

constexpr const char* kNames[kIsaLevels] = {"scalar", "avx2", "avx2vnni", "avx512", "avx512vnni", "avx512bf16"};

// gcc 12's __builtin_cpu_supports does not know avxvnni, so CPUID leaf 7.1 is read directly. The builtin has already
// checked that the OS saves the wide registers.
bool has_avxvnni() {
  uint32_t a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

}  // namespace

const char* isa_name(IsaLevel level) { return kNames[int(level)]; }

bool isa_supported(IsaLevel level) {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  switch (level) {
    case IsaLevel::kScalar: return true;
    case IsaLevel::kAvx2: return avx2;
    case IsaLevel::kAvx2Vnni: return avx2 && has_avxvnni();
    case IsaLevel::kAvx512: return avx512;
    case IsaLevel::kAvx512Vnni: return avx512 && __builtin_cpu_supports("avx512vnni");
    case IsaLevel::kAvx512Bf16:
      return avx512 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi") &&
             __builtin_cpu_supports("avx512bf16");
  }
  return false;
}

std::vector<IsaLevel> supported_isa_levels() {
  std::vector<IsaLevel> levels;
  for (int i = 0; i < kIsaLevels; i++)
    if (isa_supported(IsaLevel(i))) levels.push_back(IsaLevel(i));
  return levels;
}

Result<IsaLevel> select_isa_level() {
  const char* forced = std::getenv("FREETOKEN_CPU_ISA");
  if (!forced || !*forced) return supported_isa_levels().back();
  std::string all;
  for (int i = 0; i < kIsaLevels; i++) {
    if (std::string(kNames[i]) == forced) {
      if (isa_supported(IsaLevel(i))) return IsaLevel(i);
      return Unsupported(std::string("FREETOKEN_CPU_ISA=") + forced + ": this CPU lacks it; its best level is " +
                         isa_name(supported_isa_levels().back()));
    }
    all += std::string(i ? ", " : "") + kNames[i];
  }
  return InvalidArgument(std::string("FREETOKEN_CPU_ISA=") + forced + ": not a level; choose one of " + all);
}

}  // namespace freetoken
