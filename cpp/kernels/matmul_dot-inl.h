// The int8 dot product of a level: u8 weights times s8 activations, four products into each 32-bit lane.
// With VNNI it is one instruction for every format. Without, vpmaddubsw saturates at 2^15, so a format says how large
// its codes are:
//   Nibble  codes <= 15: sums of a whole block stay in 16 bits (8 * 2 * 15 * 127 = 30,480)
//   SixBit  codes <= 63: one product pair fits (2 * 63 * 127 = 16,002), widened at once
//   Byte    codes are w + 128: |w| is the unsigned operand and the activation takes w's sign (2 * 128 * 127 = 32,512);
//           the sum needs no zero point, so the record's correction is not used
#pragma once
#include "kernels/matmul_vec-inl.h"

namespace freetoken::FT_ISA {
namespace {

#if FT_MATMUL_VNNI

struct VnniDot {
  using Operand = Ints;
  static Operand prepare(Ints codes) { return codes; }
  static Ints start(Ints correction) { return correction; }
  static Ints add(Ints sum, Operand w, Ints x) {
#if FT_MATMUL_512
    return _mm512_dpbusd_epi32(sum, w, x);
#else
    return _mm256_dpbusd_avx_epi32(sum, w, x);
#endif
  }
  static Ints finish(Ints sum, Ints) { return sum; }
};
using NibbleDot = VnniDot;
using SixBitDot = VnniDot;
using ByteDot = VnniDot;

#else

#if FT_MATMUL_512
inline Ints pairs(Ints w, Ints x) { return _mm512_maddubs_epi16(w, x); }
inline Ints widen(Ints i16) { return _mm512_madd_epi16(i16, _mm512_set1_epi16(1)); }
inline Ints add16(Ints a, Ints b) { return _mm512_add_epi16(a, b); }
inline Ints add32(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
inline Ints keep(Ints v) { return v; }
#else
inline Ints pairs(Ints w, Ints x) { return _mm256_maddubs_epi16(w, x); }
inline Ints widen(Ints i16) { return _mm256_madd_epi16(i16, _mm256_set1_epi16(1)); }
inline Ints add16(Ints a, Ints b) { return _mm256_add_epi16(a, b); }
inline Ints add32(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
// gcc 12 postpones the additions and spills the products; this holds each where it is (measured: +12 to 40 %).
inline Ints keep(Ints v) {
  __asm__("" : "+x"(v));
  return v;
}
#endif

struct NibbleDot {
  using Operand = Ints;
  static Operand prepare(Ints codes) { return codes; }
  static Ints start(Ints) { return splat_int(0); }
  static Ints add(Ints sum, Operand w, Ints x) { return keep(add16(sum, pairs(w, x))); }
  static Ints finish(Ints sum, Ints correction) { return add32(widen(sum), correction); }
};

struct SixBitDot {
  using Operand = Ints;
  static Operand prepare(Ints codes) { return codes; }
  static Ints start(Ints correction) { return correction; }
  static Ints add(Ints sum, Operand w, Ints x) { return keep(add32(sum, widen(pairs(w, x)))); }
  static Ints finish(Ints sum, Ints) { return sum; }
};

struct ByteDot {
#if FT_MATMUL_512
  struct Operand {
    Ints magnitude;
    __mmask64 negative;
  };
  static Operand prepare(Ints codes) {
    const Ints w = bit_xor(codes, splat_byte(0x80));
    return {_mm512_abs_epi8(w), _mm512_movepi8_mask(w)};
  }
  static Ints with_sign(Ints x, Operand w) {
    return _mm512_mask_sub_epi8(x, w.negative, _mm512_setzero_si512(), x);
  }
#else
  struct Operand {
    Ints magnitude, w;
  };
  static Operand prepare(Ints codes) {
    const Ints w = bit_xor(codes, splat_byte(0x80));
    return {_mm256_abs_epi8(w), w};
  }
  static Ints with_sign(Ints x, Operand w) { return _mm256_sign_epi8(x, w.w); }
#endif
  static Ints start(Ints) { return splat_int(int32_t(kMagicBits)); }
  static Ints add(Ints sum, Operand w, Ints x) {
    return keep(add32(sum, widen(pairs(w.magnitude, with_sign(x, w)))));
  }
  static Ints finish(Ints sum, Ints) { return sum; }
};

#endif

}  // namespace
}  // namespace freetoken::FT_ISA
