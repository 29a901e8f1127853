// The integer register tile: 32 output rows x kRows activation rows over a range of K, for 4-, 6- and 8-bit formats.
//
// The accumulators of a block start at the record's correction (magic - zero point * sum(q)), so signs and the int to
// float conversion cost no multiply; then one scale product and one fma per output and block.
#pragma once
#include "kernels/matmul_driver-inl.h"
#include "kernels/matmul_formats-inl.h"

namespace freetoken::FT_ISA {
namespace {

// Columns [kFirst, kFirst + kPairs) of a tile; each is kLanes rows of both halves.
template <class Format, int kRows, int kFirst, int kPairs>
inline void integer_columns(const TileArgs& t, int prefetch_lines) {
  using Dot = typename Format::Dot;
  constexpr int kVectors = 2 * kPairs, kRecord = record_bytes(Format::kKind);
  constexpr auto row_of = [](int v) { return 16 * (v % 2) + kLanes * (kFirst + v / 2); };
  Floats sum[kRows][kVectors];
  const uint8_t* x[kRows];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; m++) {
    x[m] = t.activations[m] + t.activation_offset;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) sum[m][v] = t.accumulate ? load(t.out[m] + t.column + row_of(v)) : zero();
  }
  const uint8_t *unit = t.weights, *ahead = t.prefetch;
  size_t at = 0;
  for (int u = 0; u < t.units; u++, unit += Format::kUnitBytes) {
#pragma GCC unroll 1
    for (int b = 0; b < Format::kUnitBlocks; b++, at += kRecord) {
      prefetch(ahead, prefetch_lines);
      ahead += t.prefetch_step;
#pragma GCC unroll 2
      for (int group = 0; group < Format::kGroups; group++) {
        constexpr int kGranules = 8 / Format::kGroups;
        Ints dot[kRows][kVectors];
#pragma GCC unroll 16
        for (int m = 0; m < kRows; m++) {
          const Ints start = Dot::start(Format::kKind == ActivationKind::kMin
                                            ? splat_int(int32_t(kMagicBits))
                                            : broadcast_int(x[m] + at + kRecordTail + 4 * group));
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; v++) dot[m][v] = start;
        }
#pragma GCC unroll 8
        for (int g = 0; g < kGranules; g++) {
          typename Dot::Operand w[kVectors];
#pragma GCC unroll 2
          for (int p = 0; p < kPairs; p++) {
            const CodePair codes = Format::codes(unit, b, group * kGranules + g, kFirst + p);
            w[2 * p] = Dot::prepare(codes.half[0]);
            w[2 * p + 1] = Dot::prepare(codes.half[1]);
          }
#pragma GCC unroll 16
          for (int m = 0; m < kRows; m++) {
            const Ints q = broadcast_int(x[m] + at + 4 * (group * kGranules + g));
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; v++) dot[m][v] = Dot::add(dot[m][v], w[v], q);
          }
        }
        Floats scale[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; v++) scale[v] = Format::scale(unit, b, group, row_of(v));
#pragma GCC unroll 16
        for (int m = 0; m < kRows; m++) {
          const Floats s = broadcast_float(x[m] + at + kRecordScale);
          const Ints correction = Format::kKind == ActivationKind::kMin
                                      ? splat_int(int32_t(kMagicBits))
                                      : broadcast_int(x[m] + at + kRecordTail + 4 * group);
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; v++)
            sum[m][v] = fma(from_magic(Dot::finish(dot[m][v], correction)), mul(scale[v], s), sum[m][v]);
        }
      }
      if constexpr (Format::kKind == ActivationKind::kMin) {
        Floats min[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; v++) min[v] = Format::min(unit, row_of(v));
#pragma GCC unroll 16
        for (int m = 0; m < kRows; m++) {
          const Floats weighted_sum = broadcast_float(x[m] + at + kRecordTail);
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; v++) sum[m][v] = fma(min[v], weighted_sum, sum[m][v]);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kRows; m++)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) store(t.out[m] + t.column + row_of(v), sum[m][v]);
}

// At 512 bits one pass covers the tile. At 256 bits sixteen registers hold it for one row; more rows walk it twice.
template <class Format, int kRows>
void integer_tile(const TileArgs& t) {
  if constexpr (kColumns == 2 || kRows == 1) {
    integer_columns<Format, kRows, 0, kColumns / 2>(t, t.prefetch_lines);
  } else {
    integer_columns<Format, kRows, 0, 1>(t, t.prefetch_lines);
    integer_columns<Format, kRows, 1, 1>(t, 0);
  }
}

// Eight rows at 512 bits keep 16 integer sums in registers and some of the fp32 sums on the stack, where the final fma
// of a block finds them: 10 to 16 points of the read bandwidth at eight rows over six that fit (docs/performance.md).
constexpr int kIntegerRows = FT_MATMUL_512 ? 8 : 4;

template <class Format>
struct IntegerKernel {
  static constexpr int kMaxRows = kIntegerRows, kUnitBytes = Format::kUnitBytes;
  static constexpr int kUnitRecordBytes = record_bytes(Format::kKind) * Format::kUnitBlocks;
  static constexpr int kPrefetchBytes = Format::kUnitBytes / Format::kUnitBlocks;  // weights per prefetch: one block
  static int units(int k) { return k / (32 * Format::kUnitBlocks); }
#if FT_MATMUL_512
  static constexpr TileFunction kTiles[kMaxRows] = {integer_tile<Format, 1>, integer_tile<Format, 2>,
                                                    integer_tile<Format, 3>, integer_tile<Format, 4>,
                                                    integer_tile<Format, 5>, integer_tile<Format, 6>,
                                                    integer_tile<Format, 7>, integer_tile<Format, 8>};
#else
  static constexpr TileFunction kTiles[kMaxRows] = {integer_tile<Format, 1>, integer_tile<Format, 2>,
                                                    integer_tile<Format, 3>, integer_tile<Format, 4>};
#endif
};

}  // namespace
}  // namespace freetoken::FT_ISA
