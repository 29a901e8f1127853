// The floating-point environment of computing threads: denormals are zero, on every ISA level (vdpbf16ps flushes them
// whatever MXCSR says, so all kernels must).
#pragma once
#include <xmmintrin.h>

namespace freetoken {

inline void set_denormals_to_zero() { _mm_setcsr(_mm_getcsr() | 0x8040u); }

}  // namespace freetoken
