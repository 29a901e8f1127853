// The int8 activation records of quant/format.h, as the kernels write and read them.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>

#include "quant/format.h"

namespace freetoken::FT_ISA {
namespace {

// Bits of 1.5 * 2^23. An int32 accumulator that starts here and moves by |i| < 2^22 is, read as a float, exactly
// 12582912 + i: int to float costs one subtraction. The largest sums per block: Q8_0 32 * 128 * 127 = 520,192,
// Q4_0 32 * 8 * 127 = 32,512, Q4_1 32 * 15 * 127 = 60,960, Q6_K 16 * 32 * 127 = 65,024.
constexpr uint32_t kMagicBits = 0x4B400000u;
constexpr float kMagic = 12582912.f;

// Byte offsets in a record.
constexpr int kRecordScale = 32, kRecordTail = 36, kRecordTail2 = 40;

constexpr int record_bytes(ActivationKind kind) { return kind == ActivationKind::kBlocks16 ? 44 : 40; }

struct BlockScale {
  float s, inverse;
};

// `largest`: bits of max|x|. Below 127 * 2^-126 s is flushed to zero and with it the block. Infinity and NaN end in s.
inline BlockScale block_scale(uint32_t largest) {
  const float max = std::bit_cast<float>(largest), s = max / 127.f;
  return {s, s > 0 ? 127.f / max : 0.f};
}

// What follows q in a record; sum0 and sum1: sums of q[0..16) and q[16..32).
inline void store_tail(ActivationKind kind, float s, uint32_t sum0, uint32_t sum1, uint8_t* record) {
  uint32_t tail[2] = {0, 0};
  int bytes = 4;
  switch (kind) {
    case ActivationKind::kZeroPoint128: tail[0] = kMagicBits - 128 * (sum0 + sum1); break;
    case ActivationKind::kZeroPoint8: tail[0] = kMagicBits - 8 * (sum0 + sum1); break;
    case ActivationKind::kMin: tail[0] = std::bit_cast<uint32_t>(s * float(int32_t(sum0 + sum1))); break;
    default:
      tail[0] = kMagicBits - 32 * sum0;
      tail[1] = kMagicBits - 32 * sum1;
      bytes = 8;
  }
  std::memcpy(record + kRecordScale, &s, 4);
  std::memcpy(record + kRecordTail, tail, size_t(bytes));
}

}  // namespace
}  // namespace freetoken::FT_ISA
