#include "quant/t32.h"

#include "quant/bf16.h"
#include "quant/f16.h"
#include "quant/f32.h"
#include "quant/q4_0.h"
#include "quant/q4_1.h"
#include "quant/q6_k.h"
#include "quant/q8_0.h"

namespace freetoken {
namespace {

struct Codec {
  void (*pack)(int, const uint8_t* const*, uint8_t*);
  void (*unpack)(int, const uint8_t*, uint8_t* const*);
  void (*decode)(int, const uint8_t*, float*);
};

constexpr Codec kCodecs[kWeightFormats] = {
    {f32::pack, f32::unpack, f32::decode},    {f16::pack, f16::unpack, f16::decode},
    {bf16::pack, bf16::unpack, bf16::decode}, {q8_0::pack, q8_0::unpack, q8_0::decode},
    {q4_0::pack, q4_0::unpack, q4_0::decode}, {q4_1::pack, q4_1::unpack, q4_1::decode},
    {q6_k::pack, q6_k::unpack, q6_k::decode},
};
static_assert(q8_0::kUnitBytes == traits(WeightFormat::kQ8_0).unit_bytes);
static_assert(q4_0::kUnitBytes == traits(WeightFormat::kQ4_0).unit_bytes);
static_assert(q4_1::kUnitBytes == traits(WeightFormat::kQ4_1).unit_bytes);
static_assert(q6_k::kUnitBytes == traits(WeightFormat::kQ6_K).unit_bytes);

// Row pointers of tile t of an n-row matrix; rows past n are null.
template <class Byte>
void tile_rows(WeightFormat f, int n, int k, int t, Byte* source, Byte* rows[kTileRows]) {
  for (int r = 0; r < kTileRows; r++) {
    const int row = t * kTileRows + r;
    rows[r] = row < n ? source + size_t(row) * source_row_bytes(f, k) : nullptr;
  }
}

}  // namespace

void pack_tile(WeightFormat f, int k, const uint8_t* const rows[kTileRows], uint8_t* tile) {
  kCodecs[int(f)].pack(k, rows, tile);
}

void unpack_tile(WeightFormat f, int k, const uint8_t* tile, uint8_t* const rows[kTileRows]) {
  kCodecs[int(f)].unpack(k, tile, rows);
}

void decode_row(WeightFormat f, int k, const uint8_t* row, float* out) { kCodecs[int(f)].decode(k, row, out); }

void pack_matrix(WeightFormat f, int n, int k, const uint8_t* source, uint8_t* packed) {
  for (int t = 0; t < tile_count(n); t++) {
    const uint8_t* rows[kTileRows];
    tile_rows(f, n, k, t, source, rows);
    pack_tile(f, k, rows, packed + t * tile_bytes(f, k));
  }
}

void unpack_matrix(WeightFormat f, int n, int k, const uint8_t* packed, uint8_t* source) {
  for (int t = 0; t < tile_count(n); t++) {
    uint8_t* rows[kTileRows];
    tile_rows(f, n, k, t, source, rows);
    unpack_tile(f, k, packed + t * tile_bytes(f, k), rows);
  }
}

}  // namespace freetoken
