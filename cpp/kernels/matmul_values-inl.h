// Matmul through decoded fp32 weights: fp32 activations with every format, and bf16 where there is no vdpbf16ps.
// kPartK k of a tile are decoded to fp32, then multiplied with every row. For bf16 weights and activations the pairs of
// k are swapped on both sides, so that one ascending loop adds k + 1 before k.
#pragma once
#include <type_traits>

#include "kernels/matmul_driver-inl.h"
#include "kernels/matmul_formats-inl.h"

namespace freetoken::FT_ISA {
namespace {

constexpr int kPartK = 128;  // 16 KB of fp32 weights
using Values = float[kPartK][kTileRows];

#if FT_MATMUL_512
inline Ints shift_right_lanes(Ints v, int bits) { return _mm512_srli_epi32(v, unsigned(bits)); }
inline Ints shift_left_lanes(Ints v, int bits) { return _mm512_slli_epi32(v, unsigned(bits)); }
inline Floats to_floats(Ints v) { return _mm512_cvtepi32_ps(v); }
inline Ints sub_lanes(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats low_halves(Ints v) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)); }
constexpr int kValueRows = 12;
#else
inline Ints shift_right_lanes(Ints v, int bits) { return _mm256_srli_epi32(v, bits); }
inline Ints shift_left_lanes(Ints v, int bits) { return _mm256_slli_epi32(v, bits); }
inline Floats to_floats(Ints v) { return _mm256_cvtepi32_ps(v); }
inline Ints sub_lanes(Ints a, Ints b) { return _mm256_sub_epi32(a, b); }
inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
inline Floats low_halves(Ints v) {
  const Ints low = bit_and(v, splat_int(0xffff)), packed = _mm256_packus_epi32(low, low);
  return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
}
constexpr int kValueRows = 6;
#endif

// Decoders: values of k 32 b .. 32 b + 31 of a tile (of `count` k only, for the 16-bit formats rounded up to a pair).
template <class Packed, int kZeroPoint>
struct IntegerValues {
  static constexpr int kBlockBytes = Packed::kUnitBytes / Packed::kUnitBlocks;
  static void decode(const uint8_t* tile, int b, int, float (*v)[kTileRows]) {
    const uint8_t* unit = tile + size_t(b / Packed::kUnitBlocks) * Packed::kUnitBytes;
    const int block = b % Packed::kUnitBlocks;
    for (int g = 0; g < 8; g++)
      for (int q = 0; q < kColumns / 2; q++) {
        const CodePair codes = Packed::codes(unit, block, g, q);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
          const int row = 16 * half + kLanes * q;
          const Floats scale = Packed::scale(unit, block, Packed::kGroups == 2 ? g / 4 : 0, row);
#pragma GCC unroll 4
          for (int j = 0; j < 4; j++) {
            const Ints code = bit_and(shift_right_lanes(codes.half[half], 8 * j), splat_int(255));
            Floats value = mul(to_floats(sub_lanes(code, splat_int(kZeroPoint))), scale);
            if constexpr (Packed::kKind == ActivationKind::kMin) value = add(value, Packed::min(unit, row));
            store(v[4 * g + j] + row, value);
          }
        }
      }
  }
};

template <bool kIsBf16, bool kSwapped>
struct HalfValues {
  static constexpr int kBlockBytes = 16 * 128;
  static void decode(const uint8_t* tile, int b, int count, float (*v)[kTileRows]) {
    for (int j = 0; j < count; j += 2) {
      const uint8_t* pair = tile + size_t(b) * kBlockBytes + size_t(j) * 64;
      for (int row = 0; row < kTileRows; row += kLanes) {
        const Ints both = load_bytes(pair + 4 * row);
        const Floats even = kIsBf16 ? as_floats(shift_left_lanes(both, 16)) : low_halves(both);
        const Floats odd = kIsBf16 ? as_floats(bit_and(both, splat_int(int32_t(0xffff0000u))))
                                   : low_halves(shift_right_lanes(both, 16));
        store(v[j] + row, kSwapped ? odd : even);
        store(v[j + 1] + row, kSwapped ? even : odd);
      }
    }
  }
};

// Columns [kFirst, kFirst + kCount) of a tile (kLanes rows each) x kRows activation rows, t.units k.
template <int kRows, int kFirst, int kCount>
inline void value_columns(const TileArgs& t) {
  Floats sum[kRows][kCount];
  const uint8_t* x[kRows];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; m++) {
    x[m] = t.activations[m] + t.activation_offset;
#pragma GCC unroll 4
    for (int c = 0; c < kCount; c++)
      sum[m][c] = t.accumulate ? load(t.out[m] + t.column + kLanes * (kFirst + c)) : zero();
  }
  const float* w = reinterpret_cast<const float*>(t.weights) + kLanes * kFirst;
  for (int k = 0; k < t.units; k++, w += kTileRows) {
    prefetch(t.prefetch + size_t(k) * 128, t.prefetch_lines);
    Floats v[kCount];
#pragma GCC unroll 4
    for (int c = 0; c < kCount; c++) v[c] = load(w + kLanes * c);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; m++) {
      const Floats value = broadcast_float(x[m] + size_t(k) * 4);
#pragma GCC unroll 4
      for (int c = 0; c < kCount; c++) sum[m][c] = fma(v[c], value, sum[m][c]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kRows; m++)
#pragma GCC unroll 4
    for (int c = 0; c < kCount; c++) store(t.out[m] + t.column + kLanes * (kFirst + c), sum[m][c]);
}

template <int kRows>
void value_tile(const TileArgs& t) {
  if constexpr (kColumns == 2 || kRows <= 2) {
    value_columns<kRows, 0, kColumns>(t);
  } else {
    value_columns<kRows, 0, 2>(t);
    value_columns<kRows, 2, 2>(t);
  }
}

constexpr TileFunction kValueTiles[] = {value_tile<1>,  value_tile<2>,  value_tile<3>, value_tile<4>,
                                        value_tile<5>,  value_tile<6>,
#if FT_MATMUL_512
                                        value_tile<7>,  value_tile<8>,  value_tile<9>, value_tile<10>,
                                        value_tile<11>, value_tile<12>,
#endif
};
static_assert(sizeof kValueTiles / sizeof *kValueTiles == kValueRows);

// bf16 activations of one part, widened, the pairs swapped as the weights are.
inline void widen_swapped(const uint8_t* row, int count, float* to) {
  for (int j = 0; j < count; j += 2) {
    const uint32_t pair = load_u32(row + 2 * j);
    to[j] = std::bit_cast<float>(pair & 0xffff0000u);
    to[j + 1] = std::bit_cast<float>(pair << 16);
  }
}

struct RangePrefetch {  // kAhead bytes ahead inside [.., end), what lies beyond from `next` on
  const uint8_t *end, *next;
  const uint8_t* at(const uint8_t* p) const {
    const uint8_t* target = p + kAhead;
    return target < end ? target : next ? next + (target - end) : nullptr;
  }
};

// Chunks of rows x one part of K: the weights at `t.weights`, t.units of them, fp32.
inline void run_chunks(TileArgs t, const Job& job, int m0, int rows, int k0, bool bf16) {
  alignas(64) float widened[kValueRows][kPartK];
  const uint8_t* widened_rows[kValueRows];
  const int chunks = (rows + kValueRows - 1) / kValueRows;
  t.activation_offset = bf16 ? 0 : size_t(k0) * 4;
  for (int c = 0; c < chunks; c++) {
    const int begin = m0 + rows * c / chunks, count = rows * (c + 1) / chunks - rows * c / chunks;
    t.activations = job.activations + begin;
    t.out = job.out + begin;
    if (bf16) {
      for (int m = 0; m < count; m++) {
        widen_swapped(t.activations[m] + size_t(k0) * 2, t.units, widened[m]);
        widened_rows[m] = reinterpret_cast<const uint8_t*>(widened[m]);
      }
      t.activations = widened_rows;
    }
    kValueTiles[count - 1](t);
    t.prefetch_lines = 0;
  }
}

// Decoder = void: f32 weights, read where they are.
template <class Decoder>
void run_values(const Job& job, bool bf16) {
  alignas(64) Values values;
  const int k = bf16 ? job.w.k + job.w.k % 2 : job.w.k;
  const size_t bytes = tile_bytes(job.w.format, job.w.k);
  for (int m0 = 0; m0 < job.rows; m0 += kRowBlock) {
    const int rows = smaller(kRowBlock, job.rows - m0);
    const uint8_t* first = job.w.data + size_t(job.tile_begin) * bytes;
    const RangePrefetch ahead = {job.w.data + size_t(job.tile_end) * bytes,
                                 m0 + kRowBlock < job.rows ? first : job.next};
    for (int tile = job.tile_begin; tile < job.tile_end; tile++) {
      const uint8_t* weights = job.w.data + size_t(tile) * bytes;
      for (int k0 = 0; k0 < k; k0 += kPartK) {
        TileArgs t = {};
        t.units = smaller(kPartK, k - k0);
        t.column = size_t(tile) * kTileRows;
        t.accumulate = k0 > 0;
        if constexpr (std::is_void_v<Decoder>) {
          t.weights = weights + size_t(k0) * 128;
          t.prefetch = ahead.at(t.weights);
          t.prefetch_lines = t.prefetch ? 2 : 0;
        } else {
          for (int j = 0; j < t.units; j += 32) {
            const int block = (k0 + j) / 32;
            if (const uint8_t* p = ahead.at(weights + size_t(block) * Decoder::kBlockBytes))
              prefetch(p, (Decoder::kBlockBytes + 63) / 64);
            Decoder::decode(weights, block, smaller(32, t.units - j), values + j);
          }
          t.weights = reinterpret_cast<const uint8_t*>(values);
          t.prefetch = t.weights;
        }
        run_chunks(t, job, m0, rows, k0, bf16);
      }
    }
  }
}

inline void run_f32_activations(const Job& job) {
  switch (job.w.format) {
    case WeightFormat::kF32: return run_values<void>(job, false);
    case WeightFormat::kF16: return run_values<HalfValues<false, false>>(job, false);
    case WeightFormat::kBF16: return run_values<HalfValues<true, false>>(job, false);
    case WeightFormat::kQ8_0: return run_values<IntegerValues<Q8Format, 128>>(job, false);
    case WeightFormat::kQ4_0: return run_values<IntegerValues<Q4Format, 8>>(job, false);
    case WeightFormat::kQ4_1: return run_values<IntegerValues<Q4MinFormat, 0>>(job, false);
    case WeightFormat::kQ6_K: return run_values<IntegerValues<Q6Format, 32>>(job, false);
  }
}

}  // namespace
}  // namespace freetoken::FT_ISA
