// One weight of a T32 tile: row r (0..31), column i. The layouts are those of quant/*.h, the arithmetic is decode_row()'s.
//
// A row of a tile is strided by design (32 rows lie side by side), so reading one costs a sector for 4 to 8 bytes; a token
// reads one row of the table, a few kilobytes.
#pragma once
#include "cuda/kernels/device.h"
#include "quant/format.h"

namespace freetoken::cuda {

FT_DEV float half_at(const uint8_t* p) { return f16_to_float(*reinterpret_cast<const uint16_t*>(p)); }

// Byte j of granule g in the 4-bit plane: the low nibble belongs to rows 0..15, the high one to rows 16..31.
FT_DEV int nibble_at(const uint8_t* granule, int r, int j) { return granule[4 * (r % 16) + j] >> (r / 16 * 4) & 15; }

template <WeightFormat F>
FT_DEV float weight_at(const uint8_t* tile, int r, int i) {
  if constexpr (F == WeightFormat::kF32) {
    return reinterpret_cast<const float*>(tile)[int64_t(i) * 32 + r];
  } else if constexpr (F == WeightFormat::kF16 || F == WeightFormat::kBF16) {
    const uint8_t* p = tile + int64_t(i / 2) * 128 + r * 4 + i % 2 * 2;
    if constexpr (F == WeightFormat::kF16) return half_at(p);
    return __uint_as_float(uint32_t(*reinterpret_cast<const uint16_t*>(p)) << 16);
  } else if constexpr (F == WeightFormat::kQ8_0) {
    const uint8_t* unit = tile + int64_t(i / 32) * 1088;
    const int g = i % 32 / 4, j = i % 4;
    return float(int(unit[64 + g * 128 + 4 * r + j]) - 128) * half_at(unit + 2 * r);
  } else if constexpr (F == WeightFormat::kQ4_0) {
    const uint8_t* unit = tile + int64_t(i / 32) * 576;
    return half_at(unit + 2 * r) * float(nibble_at(unit + 64 + i % 32 / 4 * 64, r, i % 4) - 8);
  } else if constexpr (F == WeightFormat::kQ4_1) {
    const uint8_t* unit = tile + int64_t(i / 32) * 640;
    const int code = nibble_at(unit + 128 + i % 32 / 4 * 64, r, i % 4);
    return __fmul_rn(half_at(unit + 2 * r), float(code)) + half_at(unit + 64 + 2 * r);
  } else {
    static_assert(F == WeightFormat::kQ6_K, "a format without a decoder");
    const uint8_t* unit = tile + int64_t(i / 256) * 6720;
    const int e = i % 256, g = e / 4, j = e % 4, half = r / 16;
    const uint8_t* group = unit + 576 + 192 * (g / 2);
    const int low = nibble_at(group + 64 * (g % 2), r, j);
    const int high = group[128 + 4 * (r % 16) + j] >> (4 * (g % 2) + 2 * half) & 3;
    const float scale = half_at(unit + 2 * r) * float(int(int8_t(unit[64 + 32 * (e / 16) + r])));
    return scale * float((low | high << 4) - 32);
  }
}

}  // namespace freetoken::cuda
