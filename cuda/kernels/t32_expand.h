// From packed codes to bf16 pairs, the form mma takes. All results are exact: an integer of at most 8 significant bits.
#pragma once
#include "cuda/kernels/device.h"

namespace freetoken::cuda {

constexpr uint32_t kBf16One = 0x3f80u, kBf16Ones = 0x3f803f80u;

// Bytes 0, 1 (then 2, 3) of `codes` as two bf16: 128 + code, for codes below 128 (0x43 is the upper byte of 128..255).
FT_DEV uint32_t biased_pair0(uint32_t codes) { return __byte_perm(codes, 0x43434343u, 0x4140); }
FT_DEV uint32_t biased_pair1(uint32_t codes) { return __byte_perm(codes, 0x43434343u, 0x4342); }

// a - b for two bf16 each, exact where the difference is a bf16: fma(b, -1, a).
FT_DEV uint32_t sub_pairs(uint32_t a, uint32_t b) { return fma_bf16x2(b, 0xbf80bf80u, a); }

// Four codes (one a byte) minus `Bias` as bf16: k, k+1 in lo and k+2, k+3 in hi. Codes below 128, Bias below 64.
template <int Bias>
FT_DEV void expand_codes(uint32_t codes, uint32_t& lo, uint32_t& hi) {
  constexpr uint32_t kSum = 128 + Bias;  // bf16 of 128..255: 0x4300 + (sum - 128)
  constexpr uint32_t kPair = (0x4300u + (kSum - 128)) * 0x10001u;
  lo = sub_pairs(biased_pair0(codes), kPair);
  hi = sub_pairs(biased_pair1(codes), kPair);
}

// Four bytes c = q + 128: q = (128 + c % 128) - (c < 128 ? 256 : 128), and 0x4380 is 256, 0x4300 is 128.
FT_DEV void expand_bytes(uint32_t codes, uint32_t& lo, uint32_t& hi) {
  const uint32_t low7 = codes & 0x7f7f7f7fu, below = ~codes & 0x80808080u;
  lo = sub_pairs(biased_pair0(low7), biased_pair0(below));
  hi = sub_pairs(biased_pair1(low7), biased_pair1(below));
}

}  // namespace freetoken::cuda
