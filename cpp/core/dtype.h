// Element types and exact conversions between them.
#pragma once
#include <bit>
#include <cstdint>

// Kernels include this once per ISA level: an out-of-line copy built for a wide level must not serve the others.
#define FT_ALWAYS_INLINE [[gnu::always_inline]] static inline

namespace freetoken {

enum class DType : uint8_t { kF32, kF16, kBF16, kI32, kI8, kU8 };

constexpr int dtype_bytes(DType t) {
  switch (t) {
    case DType::kF32: case DType::kI32: return 4;
    case DType::kF16: case DType::kBF16: return 2;
    default: return 1;
  }
}

FT_ALWAYS_INLINE float bf16_to_f32(uint16_t h) { return std::bit_cast<float>(uint32_t(h) << 16); }

// Round to nearest even; denormal inputs and results become zero and NaN stays NaN, as vcvtneps2bf16 does.
FT_ALWAYS_INLINE uint16_t f32_to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x), magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return uint16_t((u >> 16) | 0x40u);
  if (magnitude < 0x00800000u) return uint16_t((u >> 16) & 0x8000u);
  return uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// IEEE half to float, exact for every bit pattern (denormals included).
FT_ALWAYS_INLINE float f16_to_f32(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000u) << 16, mantissa = h & 0x3ffu, exponent = (h >> 10) & 0x1fu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent) return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float tiny = float(int(mantissa)) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(tiny));
}

// Float to IEEE half, round to nearest even.
FT_ALWAYS_INLINE uint16_t f32_to_f16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x), sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // result is denormal: let the adder round at 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return uint16_t(sign | (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5f)));
  }
  return uint16_t(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
}

}  // namespace freetoken
