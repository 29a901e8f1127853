// T32: lossless for any bytes, padding that decodes to zero, sizes of the layout, decode on hand-made blocks.
// (decode against the gguf package: tests/python/test_formats.py; the layout against decode: tests/cpp/kernels.)
#include "quant/t32.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "quant/random_weights.h"

namespace freetoken {
namespace {

class T32 : public ::testing::TestWithParam<int> {
 protected:
  WeightFormat format() const { return WeightFormat(GetParam()); }
  std::mt19937 rng_{7};
};

TEST_P(T32, UnpackReturnsAnyBytes) {
  const int block = traits(format()).block_k;
  for (int n : {1, 16, 17, 31, 32, 33, 96})
    for (int blocks : {1, 2, 3, 7, 10}) {
      const int k = block * blocks;
      const auto source = testing::random_bytes(size_t(n) * source_row_bytes(format(), k), rng_);
      std::vector<uint8_t> packed(packed_bytes(format(), n, k), 0xee), back(source.size(), 0xdd);
      pack_matrix(format(), n, k, source.data(), packed.data());
      unpack_matrix(format(), n, k, packed.data(), back.data());
      ASSERT_EQ(source, back) << n << " x " << k;
    }
}

// Packing overwrites the whole tile: what lay there before cannot be seen.
TEST_P(T32, PackedBytesDependOnTheSourceOnly) {
  const int n = 33, k = traits(format()).block_k * 3;
  const auto source = testing::random_bytes(size_t(n) * source_row_bytes(format(), k), rng_);
  std::vector<uint8_t> a(packed_bytes(format(), n, k), 0x00), b(a.size(), 0xff);
  pack_matrix(format(), n, k, source.data(), a.data());
  pack_matrix(format(), n, k, source.data(), b.data());
  EXPECT_EQ(a, b);
}

// A null row is packed as the source row that decodes to +0 everywhere.
TEST_P(T32, PaddingRowsDecodeToZero) {
  const int k = traits(format()).block_k * 2;
  std::vector<uint8_t> tile(tile_bytes(format(), k)), row(source_row_bytes(format(), k));
  const uint8_t* none[kTileRows] = {};
  pack_tile(format(), k, none, tile.data());
  for (int r = 0; r < kTileRows; r++) {
    uint8_t* rows[kTileRows] = {};
    rows[r] = row.data();
    unpack_tile(format(), k, tile.data(), rows);
    std::vector<float> values(size_t(k), -1.f);
    decode_row(format(), k, row.data(), values.data());
    for (float v : values) EXPECT_EQ(std::bit_cast<uint32_t>(v), 0u) << "row " << r;
  }
}

// "At most 2 % larger than the source": with whole tiles and units it is not larger at all.
TEST_P(T32, PackedSizeIsTheSourceSize) {
  const int n = 64, k = 512;
  EXPECT_EQ(packed_bytes(format(), n, k), size_t(n) * source_row_bytes(format(), k));
}

INSTANTIATE_TEST_SUITE_P(Formats, T32, ::testing::Range(0, kWeightFormats),
                         [](const auto& info) { return std::string(traits(WeightFormat(info.param)).name); });

TEST(Decode, Q8_0ByHand) {
  uint8_t row[34] = {0x00, 0x38};  // d = 0.5
  row[2] = 127, row[3] = 0x80, row[33] = 0xff;
  float out[32];
  decode_row(WeightFormat::kQ8_0, 32, row, out);
  EXPECT_EQ(out[0], 63.5f);
  EXPECT_EQ(out[1], -64.f);
  EXPECT_EQ(out[31], -0.5f);
}

TEST(Decode, Q4ByHand) {
  uint8_t q4_0[18] = {0x00, 0x40}, q4_1[20] = {0x00, 0x40, 0x00, 0xbc};  // d = 2, m = -1
  q4_0[2 + 3] = q4_1[4 + 3] = 0xf1;                                     // element 3: code 1, element 19: code 15
  float out[32];
  decode_row(WeightFormat::kQ4_0, 32, q4_0, out);
  EXPECT_EQ(out[3], -14.f);
  EXPECT_EQ(out[19], 14.f);
  decode_row(WeightFormat::kQ4_1, 32, q4_1, out);
  EXPECT_EQ(out[3], 1.f);
  EXPECT_EQ(out[19], 29.f);
}

TEST(Decode, Q6KByHand) {
  uint8_t row[210] = {};
  row[208] = 0x00, row[209] = 0x3c;  // d = 1
  std::fill(row + 192, row + 208, uint8_t(0xff));  // scales -1
  row[192 + 7] = 3;
  row[32 + 17] = 0xa0;   // element 96 + 17 (j = 3, l = 17): low bits 10
  row[128 + 17] = 0xc0;  // ... high bits 3: code 58
  float out[256];
  decode_row(WeightFormat::kQ6_K, 256, row, out);
  EXPECT_EQ(out[96 + 17], 3.f * 26.f);  // scale 113 / 16 = 7
  EXPECT_EQ(out[0], 32.f);
}

TEST(Decode, HalfCoversEveryBitPattern) {
  for (uint32_t h = 0; h < 0x10000; h++) {
    const uint16_t bits = uint16_t(h);
    float f16 = 0, bf16 = 0;
    decode_row(WeightFormat::kF16, 1, reinterpret_cast<const uint8_t*>(&bits), &f16);
    decode_row(WeightFormat::kBF16, 1, reinterpret_cast<const uint8_t*>(&bits), &bf16);
    const int exponent = int(h >> 10 & 31), mantissa = int(h & 1023);
    const double magnitude = exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
    if (exponent == 31)
      EXPECT_EQ(std::isnan(f16), mantissa != 0) << h;
    else
      EXPECT_EQ(double(f16), h & 0x8000 ? -magnitude : magnitude) << h;
    EXPECT_EQ(std::bit_cast<uint32_t>(bf16), h << 16);
  }
}

}  // namespace
}  // namespace freetoken
