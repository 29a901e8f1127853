// encode_row, the definition: one formula, element after element.
#pragma once
#include <xmmintrin.h>

#include <bit>
#include <cstring>

#include "core/dtype.h"
#include "kernels/matmul_records-inl.h"

namespace freetoken::FT_ISA {
namespace {

// Nearest even by the SSE instruction, so that NaN and infinity give 0x80000000 here as in the vector levels.
int32_t round_to_int(float x) { return _mm_cvtss_si32(_mm_set_ss(x)); }

void encode_block(ActivationKind kind, const float* x, uint8_t* record) {
  uint32_t largest = 0;  // compared as integers: a NaN is larger than everything, and reaches the output through s
  for (int j = 0; j < 32; j++) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(x[j]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  const BlockScale scale = block_scale(largest);
  uint32_t sum[2] = {0, 0};  // unsigned: wraps like the vector sums where x was not finite
  for (int j = 0; j < 32; j++) {
    const int32_t q = round_to_int(x[j] * scale.inverse);
    record[j] = uint8_t(q);
    sum[j / 16] += uint32_t(q);
  }
  store_tail(kind, scale.s, sum[0], sum[1], record);
}

void encode_row(ActivationKind kind, const float* x, int k, uint8_t* row) {
  if (kind == ActivationKind::kF32) {
    std::memcpy(row, x, size_t(k) * 4);
    return;
  }
  if (kind == ActivationKind::kBF16) {
    for (int i = 0; i < k + k % 2; i++) {
      const uint16_t h = i < k ? f32_to_bf16(x[i]) : uint16_t(0);
      std::memcpy(row + size_t(i) * 2, &h, 2);
    }
    return;
  }
  for (int i = 0; i < k; i += 32, row += record_bytes(kind)) {
    float block[32] = {};
    std::memcpy(block, x + i, size_t(k - i < 32 ? k - i : 32) * 4);
    encode_block(kind, block, row);
  }
}

}  // namespace
}  // namespace freetoken::FT_ISA
