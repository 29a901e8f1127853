// Packing to and from T32, and the scalar decode that defines each format.
#pragma once
#include <cstdint>

#include "core/status.h"
#include "quant/format.h"

namespace freetoken {

// Packs rows into tile `tile` (already at its place: tile_bytes(f, k) bytes, overwritten whole).
// rows[r], r = 0..31: source bytes of the tile's row r (source_row_bytes(f, k)), or null for a padding row.
// For gate/up matrices the caller passes 16 gate rows, then 16 up rows.
void pack_tile(WeightFormat f, int k, const uint8_t* const rows[kTileRows], uint8_t* tile);

// Inverse of pack_tile: rows[r] receives the source bytes (null rows are skipped). Lossless.
void unpack_tile(WeightFormat f, int k, const uint8_t* tile, uint8_t* const rows[kTileRows]);

// Decodes k weights of one source row to fp32, bit-equal to the gguf package. This is the format's definition here.
void decode_row(WeightFormat f, int k, const uint8_t* row, float* out);

// Whole matrices: source n rows of source_row_bytes(f, k), packed packed_bytes(f, n, k).
void pack_matrix(WeightFormat f, int n, int k, const uint8_t* source, uint8_t* packed);
void unpack_matrix(WeightFormat f, int n, int k, const uint8_t* packed, uint8_t* source);

}  // namespace freetoken
