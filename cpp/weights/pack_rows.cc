#include "weights/pack_rows.h"

#include <algorithm>

#include "quant/t32.h"
#include "weights/loader.h"

namespace freetoken {
namespace {

Status read(const WeightEntry& entry, const std::vector<File>& files, uint8_t* out, int64_t bytes, int64_t offset) {
  const Status status = files[size_t(entry.file)].pread_full(out, size_t(bytes), entry.offset + offset);
  if (status.ok()) return status;
  return Status(status.code(), "tensor '" + entry.source + "' (" + entry.name + "): " + status.message());
}

// The stored rows that canonical rows [begin, end) lie among.
struct Span {
  int begin = 0, end = 0;
  int64_t rows() const { return end - begin; }
};

Span stored_span(const WeightEntry& entry, int begin, int end) {
  Span span = {begin, end};
  if (entry.rotary_heads == 0 || begin == end) return span;
  span = {entry.n, 0};
  for (int row = begin; row < end; row++) {
    const int stored = stored_row(entry, row);
    span = {std::min(span.begin, stored), std::max(span.end, stored + 1)};
  }
  return span;
}

// One source of a matrix and which of its rows each tile holds.
struct Source {
  const WeightEntry* entry;
  int rows_per_tile;   // 32, or 16 of a gate/up pair
  int first_in_tile;   // position of its first row in a tile
};

std::vector<Source> sources(const LoadTensor& tensor) {
  if (!tensor.second) return {{tensor.first, kTileRows, 0}};
  return {{tensor.first, kTileRows / 2, 0}, {tensor.second, kTileRows / 2, kTileRows / 2}};
}

}  // namespace

int stored_row(const WeightEntry& entry, int row) {
  if (entry.rotary_heads == 0) return row;
  const int dim = entry.n / entry.rotary_heads, half = dim / 2;
  const int head = row / dim, in_head = row % dim;
  return head * dim + in_head % half * 2 + in_head / half;
}

int tiles_per_read(const LoadTensor& tensor) {
  const int64_t tile_source_bytes = kTileRows * int64_t(source_row_bytes(tensor.info.format, tensor.info.k));
  return int(std::max<int64_t>(1, kLoadBufferBytes / tile_source_bytes));
}

Status pack_tiles(const LoadTensor& tensor, const std::vector<File>& files, int begin, int end, uint8_t* packed,
                  std::vector<uint8_t>* buffer) {
  const WeightFormat format = tensor.info.format;
  const int64_t row_bytes = int64_t(source_row_bytes(format, tensor.info.k));
  const std::vector<Source> all = sources(tensor);
  Span spans[2];
  int64_t starts[2] = {}, bytes = 0;
  for (size_t s = 0; s < all.size(); s++) {
    const int n = all[s].entry->n, per_tile = all[s].rows_per_tile;
    const auto clamped = [&](int tile) { return int(std::min<int64_t>(n, int64_t(tile) * per_tile)); };
    spans[s] = stored_span(*all[s].entry, clamped(begin), clamped(end));
    starts[s] = bytes;
    bytes += spans[s].rows() * row_bytes;
  }
  if (int64_t(buffer->size()) < bytes) buffer->resize(size_t(bytes));
  for (size_t s = 0; s < all.size(); s++)
    FT_RETURN_IF_ERROR(read(*all[s].entry, files, buffer->data() + starts[s], spans[s].rows() * row_bytes,
                            spans[s].begin * row_bytes));

  const size_t one_tile = tile_bytes(format, tensor.info.k);
  for (int tile = begin; tile < end; tile++) {
    const uint8_t* rows[kTileRows] = {};
    for (size_t s = 0; s < all.size(); s++)
      for (int i = 0; i < all[s].rows_per_tile; i++) {
        const int64_t row = int64_t(tile) * all[s].rows_per_tile + i;
        if (row >= all[s].entry->n) continue;  // padding
        const int stored = stored_row(*all[s].entry, int(row));
        rows[all[s].first_in_tile + i] = buffer->data() + starts[s] + (stored - spans[s].begin) * row_bytes;
      }
    pack_tile(format, tensor.info.k, rows, packed + size_t(tile) * one_tile);
  }
  return {};
}

Status pack_vector(const LoadTensor& tensor, const std::vector<File>& files, float* out, std::vector<uint8_t>* buffer) {
  const WeightEntry& entry = *tensor.first;
  if (int64_t(buffer->size()) < entry.bytes) buffer->resize(size_t(entry.bytes));
  FT_RETURN_IF_ERROR(read(entry, files, buffer->data(), entry.bytes, 0));
  if (entry.rotary_heads == 0) {
    decode_row(entry.format, entry.n, buffer->data(), out);
    return {};
  }
  const size_t element_bytes = size_t(traits(entry.format).block_bytes);
  for (int i = 0; i < entry.n; i++)
    decode_row(entry.format, 1, buffer->data() + size_t(stored_row(entry, i)) * element_bytes, out + i);
  return {};
}

}  // namespace freetoken
