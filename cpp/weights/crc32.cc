#include "weights/crc32.h"

#include <array>
#include <bit>
#include <cstring>

namespace freetoken {
namespace {

static_assert(std::endian::native == std::endian::little);

using Table = std::array<std::array<uint32_t, 256>, 8>;

// tables[j][b]: what byte b does to the checksum j bytes later.
constexpr Table make_tables() {
  Table tables{};
  for (uint32_t b = 0; b < 256; b++) {
    uint32_t c = b;
    for (int bit = 0; bit < 8; bit++) c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
    tables[0][b] = c;
  }
  for (uint32_t b = 0; b < 256; b++)
    for (size_t j = 1; j < 8; j++) tables[j][b] = tables[0][tables[j - 1][b] & 0xff] ^ (tables[j - 1][b] >> 8);
  return tables;
}
constexpr Table kTables = make_tables();

}  // namespace

uint32_t crc32(const uint8_t* data, size_t bytes, uint32_t before) {
  uint32_t c = ~before;
  for (; bytes >= 8; data += 8, bytes -= 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    word ^= c;
    c = 0;
    for (size_t j = 0; j < 8; j++) c ^= kTables[7 - j][(word >> (8 * j)) & 0xff];
  }
  for (; bytes > 0; data++, bytes--) c = kTables[0][(c ^ *data) & 0xff] ^ (c >> 8);
  return ~c;
}

}  // namespace freetoken
