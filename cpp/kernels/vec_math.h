// exp on F16 lanes: the same steps and constants as exp_f32 in core/math.h, so vector and scalar code agree bit for bit.
#pragma once
#include "core/math.h"
#include "kernels/vec.h"

namespace freetoken {
namespace FT_ISA {
namespace {

inline F16 exp16(F16 x) {
  using C = ExpConstants;
  const F16 clamped = min(set1(C::kHighest), x);
  const F16 rounded = fma(clamped, set1(C::kLog2E), set1(C::kMagic));
  const F16 n = sub(rounded, set1(C::kMagic));
  F16 r = fma(n, set1(-C::kLn2Hi), clamped);
  r = fma(n, set1(-C::kLn2Lo), r);
  F16 p = set1(C::kC6);
  p = fma(p, r, set1(C::kC5));
  p = fma(p, r, set1(C::kC4));
  p = fma(p, r, set1(C::kC3));
  p = fma(p, r, set1(C::kC2));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  return zero_where_less(x, set1(C::kLowest), mul(p, pow2_of_magic(rounded)));
}

}  // namespace
}  // namespace FT_ISA
}  // namespace freetoken
