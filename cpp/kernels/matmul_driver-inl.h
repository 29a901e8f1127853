// From a matmul call to register tiles: rows in blocks of kRowBlock that stay in the L2 cache, inside them tiles,
// inside those nearly equal chunks of rows. Weights are prefetched: a single chunk streams kAhead bytes ahead of
// itself, and its last kAhead bytes fetch what the thread reads next; several chunks share the prefetch of the
// following tile.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/matmul.h"

namespace freetoken::FT_ISA {
namespace {

constexpr int kRowBlock = 96;
// Measured: 1536 and 3072 lose read bandwidth, 6144 is equal, 9216 equal or lower (docs/performance.md).
constexpr size_t kAhead = 4608;

struct Job {
  const PackedMatrix& w;
  int tile_begin, tile_end, rows;
  const uint8_t* const* activations;
  float* const* out;
  const uint8_t* next;
};

// One register tile: `units` units of weights times as many activation rows as the function is made for.
// out[m][column .. column + 31] = (accumulate ? old value : 0) + the products, k ascending.
struct TileArgs {
  const uint8_t* weights;
  int units;
  const uint8_t* const* activations;
  size_t activation_offset;  // bytes into each row
  float* const* out;
  size_t column;
  bool accumulate;
  const uint8_t* prefetch;  // per block of weights: `prefetch_lines` cache lines from here, then on by prefetch_step
  int prefetch_lines;
  size_t prefetch_step;
};
using TileFunction = void (*)(const TileArgs&);

inline void prefetch(const uint8_t* p, int lines) {
  for (const uint8_t* end = p + 64 * lines; p != end; p += 64) __builtin_prefetch(p, 0, 3);
}

inline int smaller(int a, int b) { return a < b ? a : b; }

// Prefetch of `from` while one block (kBlockBytes of weights) is computed: all of it, or one of `shares` parts.
inline void set_prefetch(TileArgs& t, const uint8_t* from, size_t block_bytes, int share, int shares, size_t blocks) {
  const size_t lines = (block_bytes + 63) / 64, part = (lines + size_t(shares) - 1) / size_t(shares);
  const bool useful = from && size_t(share) * part < lines;
  t.prefetch_lines = useful ? int(part) : 0;
  t.prefetch_step = !useful ? 0 : shares == 1 ? block_bytes : part * 64;
  t.prefetch = useful ? from + size_t(share) * blocks * part * 64 : t.weights;
}

// Runs `Kernel` (kMaxRows, kTiles[rows - 1], kUnitBytes, kUnitRecordBytes, kPrefetchBytes, units(k)) on packed weights.
template <class Kernel>
void run_packed(const Job& job) {
  const size_t bytes = tile_bytes(job.w.format, job.w.k);
  const int units = Kernel::units(job.w.k);
  for (int m0 = 0; m0 < job.rows; m0 += kRowBlock) {
    const int rows = smaller(kRowBlock, job.rows - m0), chunks = (rows + Kernel::kMaxRows - 1) / Kernel::kMaxRows;
    for (int tile = job.tile_begin; tile < job.tile_end; tile++) {
      TileArgs t = {};
      t.weights = job.w.data + size_t(tile) * bytes;
      t.column = size_t(tile) * kTileRows;
      const bool last = tile + 1 == job.tile_end;
      if (chunks == 1) {
        const int tail = last ? smaller(units, int((kAhead + Kernel::kUnitBytes - 1) / Kernel::kUnitBytes)) : 0;
        t.activations = job.activations + m0;
        t.out = job.out + m0;
        t.units = units - tail;
        if (t.units) {
          set_prefetch(t, t.weights + kAhead, Kernel::kPrefetchBytes, 0, 1, 0);
          Kernel::kTiles[rows - 1](t);
        }
        if (tail) {
          t.accumulate = t.units > 0;
          t.weights += size_t(t.units) * Kernel::kUnitBytes;
          t.activation_offset = size_t(t.units) * Kernel::kUnitRecordBytes;
          t.units = tail;
          set_prefetch(t, job.next, Kernel::kPrefetchBytes, 0, 1, 0);
          Kernel::kTiles[rows - 1](t);
        }
        continue;
      }
      const uint8_t* following = !last                          ? t.weights + bytes
                                 : m0 + kRowBlock < job.rows ? job.w.data + size_t(job.tile_begin) * bytes
                                                             : job.next;
      t.units = units;
      for (int c = 0; c < chunks; c++) {
        const int begin = rows * c / chunks, end = rows * (c + 1) / chunks;
        t.activations = job.activations + m0 + begin;
        t.out = job.out + m0 + begin;
        set_prefetch(t, following, Kernel::kPrefetchBytes, c, chunks, bytes / Kernel::kPrefetchBytes);
        Kernel::kTiles[end - begin - 1](t);
      }
    }
  }
}

// Runs 4- and 6-bit formats for more rows than one chunk: kBlockUnits units of a tile are expanded to `Kernel`'s form,
// then all chunks of rows use them. The sums wait in `out` between the parts of K.
template <class Kernel, class Expanded, class Packed>
void run_expanded(const Job& job) {
  constexpr int kPartBlocks = 16;  // 512 k: at most 21 KB beside the chunk's activations in the L1 cache
  alignas(64) uint8_t expanded[kPartBlocks * Expanded::kUnitBytes];
  const size_t bytes = tile_bytes(job.w.format, job.w.k);
  const int blocks = job.w.k / 32;
  constexpr size_t kBlockBytes = Packed::kUnitBytes / Packed::kUnitBlocks;
  for (int m0 = 0; m0 < job.rows; m0 += kRowBlock) {
    const int rows = smaller(kRowBlock, job.rows - m0), chunks = (rows + Kernel::kMaxRows - 1) / Kernel::kMaxRows;
    for (int tile = job.tile_begin; tile < job.tile_end; tile++) {
      const uint8_t* weights = job.w.data + size_t(tile) * bytes;
      for (int b0 = 0; b0 < blocks; b0 += kPartBlocks) {
        const int part = smaller(kPartBlocks, blocks - b0);
        for (int b = 0; b < part; b++)
          Expanded::expand(weights + size_t((b0 + b) / Packed::kUnitBlocks) * Packed::kUnitBytes,
                           (b0 + b) % Packed::kUnitBlocks, expanded + b * Expanded::kUnitBytes);
        const bool last = tile + 1 == job.tile_end && b0 + part == blocks;
        const uint8_t* following = !last                          ? weights + size_t(b0 + part) * kBlockBytes
                                   : m0 + kRowBlock < job.rows ? job.w.data + size_t(job.tile_begin) * bytes
                                                               : job.next;
        TileArgs t = {};
        t.weights = expanded;
        t.units = part;
        t.column = size_t(tile) * kTileRows;
        t.accumulate = b0 > 0;
        t.activation_offset = size_t(b0) * Kernel::kUnitRecordBytes;
        for (int c = 0; c < chunks; c++) {
          const int begin = rows * c / chunks, end = rows * (c + 1) / chunks;
          t.activations = job.activations + m0 + begin;
          t.out = job.out + m0 + begin;
          set_prefetch(t, following, kBlockBytes, c, chunks, size_t(part));
          Kernel::kTiles[end - begin - 1](t);
        }
      }
    }
  }
}

}  // namespace
}  // namespace freetoken::FT_ISA
