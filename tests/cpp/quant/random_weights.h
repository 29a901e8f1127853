// Source rows for tests: random bytes everywhere, then the scales made finite and small enough to multiply.
#pragma once
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/dtype.h"
#include "quant/format.h"

namespace freetoken::testing {

inline std::vector<uint8_t> random_bytes(size_t n, std::mt19937& rng) {
  std::vector<uint8_t> bytes(n);
  for (auto& b : bytes) b = uint8_t(rng());
  return bytes;
}

// A value with a random sign and an exponent 2^low..2^high.
inline float random_value(std::mt19937& rng, int low, int high) {
  const float mantissa = 1 + float(rng() >> 9) * 0x1p-23f;
  return std::ldexp(rng() % 2 ? mantissa : -mantissa, low + int(rng() % unsigned(high - low + 1)));
}

// n source rows of k weights. Codes are uniform over all bit patterns; low..high bound the
// exponents of values and scales.
inline std::vector<uint8_t> random_rows(WeightFormat f, int n, int k, std::mt19937& rng, int low = -8, int high = 0) {
  std::vector<uint8_t> rows = random_bytes(size_t(n) * source_row_bytes(f, k), rng);
  const auto put16 = [&](uint8_t* p, uint16_t v) { std::memcpy(p, &v, 2); };
  const auto half = [&] { return f32_to_f16(random_value(rng, low, high)); };
  const size_t blocks = rows.size() / size_t(traits(f).block_bytes);
  for (size_t b = 0; b < blocks; b++) {
    uint8_t* p = rows.data() + b * size_t(traits(f).block_bytes);
    switch (f) {
      case WeightFormat::kF32: {
        const float v = random_value(rng, low, high);
        std::memcpy(p, &v, 4);
        break;
      }
      case WeightFormat::kBF16: put16(p, f32_to_bf16(random_value(rng, low, high))); break;
      case WeightFormat::kQ4_1: put16(p + 2, half()); [[fallthrough]];
      case WeightFormat::kF16: case WeightFormat::kQ8_0: case WeightFormat::kQ4_0: put16(p, half()); break;
      case WeightFormat::kQ6_K: put16(p + 208, half()); break;
    }
  }
  return rows;
}

}  // namespace freetoken::testing
