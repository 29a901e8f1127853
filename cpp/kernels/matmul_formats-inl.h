// How the integer kernels read a format: per block of 32 k its scales, and per granule of 4 k the codes. Column q (0
// .. kColumns / 2 - 1) names kLanes rows of a half; a read gives them for both halves, rows kLanes q + i and 16 +
// kLanes q + i.
#pragma once
#include "kernels/matmul_dot-inl.h"
#include "quant/q4_0.h"
#include "quant/q4_1.h"
#include "quant/q6_k.h"
#include "quant/q8_0.h"

namespace freetoken::FT_ISA {
namespace {

struct CodePair {
  Ints half[2];
};

inline CodePair split_nibbles(const uint8_t* p) {
  const Ints both = load_bytes(p), low = splat_byte(15);
  return {bit_and(both, low), bit_and(shift_right<4>(both), low)};
}

// Members of a format: kKind, kUnitBlocks (blocks of 32 k in a unit), kUnitBytes, kGroups (scales per block), Dot,
// scale(unit, block, group, row), min(unit, row), codes(unit, block, granule, column).
struct Q8Format {
  static constexpr ActivationKind kKind = ActivationKind::kZeroPoint128;
  static constexpr int kUnitBlocks = 1, kUnitBytes = q8_0::kUnitBytes, kGroups = 1;
  using Dot = ByteDot;
  static Floats scale(const uint8_t* unit, int, int, int row) { return load_halves(unit + 2 * row); }
  static CodePair codes(const uint8_t* unit, int, int g, int q) {
    const uint8_t* p = unit + 64 + g * 128 + q * kVectorBytes;
    return {load_bytes(p), load_bytes(p + 64)};
  }
};

struct Q4Format {
  static constexpr ActivationKind kKind = ActivationKind::kZeroPoint8;
  static constexpr int kUnitBlocks = 1, kUnitBytes = q4_0::kUnitBytes, kGroups = 1;
  using Dot = NibbleDot;
  static Floats scale(const uint8_t* unit, int, int, int row) { return load_halves(unit + 2 * row); }
  static CodePair codes(const uint8_t* unit, int, int g, int q) {
    return split_nibbles(unit + 64 + g * 64 + q * kVectorBytes);
  }
};

struct Q4MinFormat {
  static constexpr ActivationKind kKind = ActivationKind::kMin;
  static constexpr int kUnitBlocks = 1, kUnitBytes = q4_1::kUnitBytes, kGroups = 1;
  using Dot = NibbleDot;
  static Floats scale(const uint8_t* unit, int, int, int row) { return load_halves(unit + 2 * row); }
  static Floats min(const uint8_t* unit, int row) { return load_halves(unit + 64 + 2 * row); }
  static CodePair codes(const uint8_t* unit, int, int g, int q) {
    return split_nibbles(unit + 128 + g * 64 + q * kVectorBytes);
  }
};

struct Q6Format {
  static constexpr ActivationKind kKind = ActivationKind::kBlocks16;
  static constexpr int kUnitBlocks = 8, kUnitBytes = q6_k::kUnitBytes, kGroups = 2;
  using Dot = SixBitDot;
  static Floats scale(const uint8_t* unit, int block, int group, int row) {
    return mul(load_halves(unit + 2 * row), load_int8(unit + q6_k::kUnitScales + 32 * (2 * block + group) + row));
  }
  static CodePair codes(const uint8_t* unit, int block, int g, int q) {
    const uint8_t* p = unit + q6_k::kUnitGroups + 192 * (4 * block + g / 2) + q * kVectorBytes;
    const CodePair low = split_nibbles(p + 64 * (g % 2));
    const Ints high = load_bytes(p + 128), two = splat_byte(0x30);
    if (g % 2 == 0)
      return {bit_or(low.half[0], bit_and(shift_left<4>(high), two)),
              bit_or(low.half[1], bit_and(shift_left<2>(high), two))};
    return {bit_or(low.half[0], bit_and(high, two)), bit_or(low.half[1], bit_and(shift_right<2>(high), two))};
  }
};

// A format after expansion: one byte per code as Q8_0 has it, fp32 scales. Many rows of activations read the same
// weights again and again, so unpacking them once per tile pays (see matmul_int-inl.h).
template <class Packed>
struct Expanded {
  static constexpr ActivationKind kKind = Packed::kKind;
  static constexpr bool kHasMin = kKind == ActivationKind::kMin;
  static constexpr int kUnitBlocks = 1, kGroups = Packed::kGroups;
  static constexpr int kCodes = 128 * (kGroups + kHasMin), kUnitBytes = kCodes + 1024;
  using Dot = typename Packed::Dot;
  static const float* floats(const uint8_t* p) { return reinterpret_cast<const float*>(p); }
  static Floats scale(const uint8_t* unit, int, int group, int row) { return load(floats(unit) + 32 * group + row); }
  static Floats min(const uint8_t* unit, int row) { return load(floats(unit) + 32 + row); }
  static CodePair codes(const uint8_t* unit, int, int g, int q) {
    const uint8_t* p = unit + kCodes + g * 128 + q * kVectorBytes;
    return {load_bytes(p), load_bytes(p + 64)};
  }

  // Expands one block of a packed unit to `to` (kUnitBytes, 64-byte aligned).
  static void expand(const uint8_t* unit, int block, uint8_t* to) {
    float* f = reinterpret_cast<float*>(to);
    for (int row = 0; row < kTileRows; row += kLanes) {
      for (int group = 0; group < kGroups; group++)
        store(f + 32 * group + row, Packed::scale(unit, block, group, row));
      if constexpr (kHasMin) store(f + 32 + row, Packed::min(unit, row));
    }
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++)
#pragma GCC unroll 2
      for (int q = 0; q < kColumns / 2; q++) {
        const CodePair c = Packed::codes(unit, block, g, q);
        uint8_t* p = to + kCodes + g * 128 + q * kVectorBytes;
        store_bytes(p, c.half[0]);
        store_bytes(p + 64, c.half[1]);
      }
  }
};

}  // namespace
}  // namespace freetoken::FT_ISA
