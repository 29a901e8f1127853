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

// Columns [kFirst, kFirst + kCount) of a tile (kLanes rows each) x kRows activation rows, t.units k. The activations
// lie kPartK floats apart from t.activations[0] on: with a pointer each, twelve rows would not fit the registers
// (measured).
template <int kRows, int kFirst, int kCount>
inline void value_columns(const TileArgs& t) {
  constexpr int kStep = 4;  // k between prefetches
  Floats sum[kRows][kCount];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; m++)
#pragma GCC unroll 4
    for (int c = 0; c < kCount; c++)
      sum[m][c] = t.accumulate ? load(t.out[m] + t.column + kLanes * (kFirst + c)) : zero();
  const float* w = reinterpret_cast<const float*>(t.weights) + kLanes * kFirst;
  const float* x = reinterpret_cast<const float*>(t.activations[0]);
  const auto add_k = [&](const float* weights, const float* values) __attribute__((always_inline)) {
    Floats v[kCount];
#pragma GCC unroll 4
    for (int c = 0; c < kCount; c++) v[c] = load(weights + kLanes * c);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; m++) {
      const Floats value = splat(values[m * kPartK]);
#pragma GCC unroll 4
      for (int c = 0; c < kCount; c++) sum[m][c] = fma(v[c], value, sum[m][c]);
    }
  };
  int k = 0;
  for (; k + kStep <= t.units; k += kStep, w += kStep * kTileRows, x += kStep) {
    if (t.prefetch_lines) prefetch(t.prefetch + size_t(k) * 128, 2 * kStep);
#pragma GCC unroll 4
    for (int i = 0; i < kStep; i++) add_k(w + i * kTileRows, x + i);
  }
  for (; k < t.units; k++, w += kTileRows, x++) add_k(w, x);
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

// Activations of one part of K as fp32; bf16 ones are widened, their pairs swapped as the weights are.
inline void load_part(const uint8_t* row, bool bf16, int k0, int count, float* to) {
  if (!bf16) {
    std::memcpy(to, row + size_t(k0) * 4, size_t(count) * 4);
    return;
  }
  row += size_t(k0) * 2;
  for (int j = 0; j < count; j += 2) {
    const uint32_t pair = load_u32(row + 2 * j);
    to[j] = std::bit_cast<float>(pair & 0xffff0000u);
    to[j + 1] = std::bit_cast<float>(pair << 16);
  }
}

// The decoded weights of one part of a tile. Decoder = void: f32, which is read where it lies.
// `ahead`: weights to prefetch meanwhile, or null.
template <class Decoder>
inline void load_weights(TileArgs& t, const uint8_t* tile, int k0, const uint8_t* ahead, Values& values) {
  if constexpr (std::is_void_v<Decoder>) {
    t.weights = tile + size_t(k0) * 128;
    t.prefetch = ahead ? ahead : t.weights;
    t.prefetch_lines = ahead ? 2 : 0;
  } else {
    for (int j = 0; j < t.units; j += 32) {
      if (ahead) prefetch(ahead + size_t(j / 32) * Decoder::kBlockBytes, (Decoder::kBlockBytes + 63) / 64);
      Decoder::decode(tile, (k0 + j) / 32, smaller(32, t.units - j), values + j);
    }
    t.weights = reinterpret_cast<const uint8_t*>(values);
    t.prefetch = t.weights;
  }
}

// Bytes of packed weights from the start of a tile to k (a multiple of kPartK).
template <class Decoder>
constexpr size_t offset_of(int k) {
  if constexpr (std::is_void_v<Decoder>)
    return size_t(k) * 128;
  else
    return size_t(k / 32) * Decoder::kBlockBytes;
}

// One chunk of rows: tiles in the order of memory, kAhead bytes ahead.
template <class Decoder>
void stream_values(const Job& job, bool bf16, int k) {
  alignas(64) Values values;
  alignas(64) float x[kValueRows][kPartK];
  const uint8_t* const gathered = reinterpret_cast<const uint8_t*>(x);
  const size_t bytes = tile_bytes(job.w.format, job.w.k);
  const uint8_t* end = job.w.data + size_t(job.tile_end) * bytes;
  for (int tile = job.tile_begin; tile < job.tile_end; tile++) {
    const uint8_t* weights = job.w.data + size_t(tile) * bytes;
    for (int k0 = 0; k0 < k; k0 += kPartK) {
      TileArgs t = {};
      t.units = smaller(kPartK, k - k0);
      t.column = size_t(tile) * kTileRows;
      t.accumulate = k0 > 0;
      t.out = job.out;
      t.activations = &gathered;
      for (int m = 0; m < job.rows; m++) load_part(job.activations[m], bf16, k0, t.units, x[m]);
      const uint8_t* ahead = weights + offset_of<Decoder>(k0) + kAhead;
      if (ahead >= end) ahead = job.next ? job.next + (ahead - end) : nullptr;
      load_weights<Decoder>(t, weights, k0, ahead, values);
      kValueTiles[job.rows - 1](t);
    }
  }
}

// Many rows: a part of K for all tiles, so that the activations of the part are gathered once. (Where they come from,
// rows may be a power of two apart and share their cache sets.)
template <class Decoder>
void block_values(const Job& job, bool bf16, int k) {
  alignas(64) Values values;
  alignas(64) float x[kRowBlock][kPartK];
  const size_t bytes = tile_bytes(job.w.format, job.w.k);
  for (int m0 = 0; m0 < job.rows; m0 += kRowBlock) {
    const int rows = smaller(kRowBlock, job.rows - m0), chunks = (rows + kValueRows - 1) / kValueRows;
    for (int k0 = 0; k0 < k; k0 += kPartK) {
      TileArgs t = {};
      t.units = smaller(kPartK, k - k0);
      t.accumulate = k0 > 0;
      for (int m = 0; m < rows; m++) load_part(job.activations[m0 + m], bf16, k0, t.units, x[m]);
      for (int tile = job.tile_begin; tile < job.tile_end; tile++) {
        const uint8_t* weights = job.w.data + size_t(tile) * bytes;
        const bool more = tile + 1 < job.tile_end;
        load_weights<Decoder>(t, weights, k0, more ? weights + bytes + offset_of<Decoder>(k0) : job.next, values);
        t.column = size_t(tile) * kTileRows;
        for (int c = 0; c < chunks; c++) {
          const int begin = rows * c / chunks, end = rows * (c + 1) / chunks;
          const uint8_t* const gathered = reinterpret_cast<const uint8_t*>(x[begin]);
          t.activations = &gathered;
          t.out = job.out + m0 + begin;
          kValueTiles[end - begin - 1](t);
          t.prefetch_lines = 0;
        }
      }
    }
  }
}

template <class Decoder>
void run_values(const Job& job, bool bf16) {
  const int k = bf16 ? job.w.k + job.w.k % 2 : job.w.k;
  if (job.rows <= kValueRows)
    stream_values<Decoder>(job, bf16, k);
  else
    block_values<Decoder>(job, bf16, k);
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
