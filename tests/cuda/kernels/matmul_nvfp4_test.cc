// NVFP4: the scalar codec against torch, the packed layout as a permutation, and a matmul on it against doubles.
#include "cuda/kernels/matmul_nvfp4.h"

#include "cuda/kernels/matmul_nvfp4_vectors.h"
#include "cuda/kernels/matmul_support.h"
#include "quant/nvfp4.h"

namespace freetoken::cuda {
namespace {

namespace vectors = testing::nvfp4_vectors;
using freetoken::testing::random_bytes;
using testing::DeviceArray;

TEST(Nvfp4, ScalesAndRowsDecodeAsInTorch) {
  for (int v = 0; v < 256; v++) {
    const float expected = std::bit_cast<float>(vectors::kE4m3[v]), value = nvfp4::e4m3_to_f32(uint8_t(v));
    if (std::isnan(expected)) EXPECT_TRUE(std::isnan(value)) << v;
    else EXPECT_EQ(std::bit_cast<uint32_t>(value), vectors::kE4m3[v]) << v;
  }
  ASSERT_EQ(std::size(vectors::kDecodedSource), vectors::kRows * nvfp4::source_row_bytes(vectors::kK));
  for (int r = 0; r < vectors::kRows; r++) {
    float out[vectors::kK];
    nvfp4::decode(vectors::kK, vectors::kDecodedSource + r * nvfp4::source_row_bytes(vectors::kK), out);
    for (int i = 0; i < vectors::kK; i++)
      EXPECT_EQ(std::bit_cast<uint32_t>(out[i]), vectors::kDecoded[r * vectors::kK + i]) << r << ", " << i;
  }
}

TEST(Nvfp4, EncodesAsTorch) {
  for (int r = 0; r < vectors::kRows; r++) {
    float x[vectors::kK];
    for (int i = 0; i < vectors::kK; i++) x[i] = std::bit_cast<float>(vectors::kEncodedInput[r * vectors::kK + i]);
    std::vector<uint8_t> row(nvfp4::source_row_bytes(vectors::kK), 0xee);
    nvfp4::encode(vectors::kK, x, std::bit_cast<float>(vectors::kMatrixScale[0]), row.data());
    for (size_t i = 0; i < row.size(); i++)
      EXPECT_EQ(row[i], vectors::kEncoded[r * row.size() + i]) << r << ", byte " << i;
  }
}

TEST(Nvfp4, UnpackReturnsAnyBytes) {
  std::mt19937 rng(31);
  for (const int n : {1, 16, 17, 31, 32})
    for (const int k : {16, 32, 48, 160, 496}) {
      const size_t row = nvfp4::source_row_bytes(k);
      const std::vector<uint8_t> source = random_bytes(n * row, rng);
      std::vector<uint8_t> back(source.size(), 0xdd);
      const uint8_t* from[kTileRows] = {};
      uint8_t* to[kTileRows] = {};
      for (int r = 0; r < n; r++) from[r] = source.data() + r * row, to[r] = back.data() + r * row;
      std::vector<uint8_t> a(nvfp4::tile_bytes(k), 0x00), b(nvfp4::tile_bytes(k), 0xff);
      nvfp4::pack(k, from, a.data());
      nvfp4::pack(k, from, b.data());
      ASSERT_EQ(a, b) << "not overwritten whole: " << n << " x " << k;
      nvfp4::unpack(k, a.data(), to);
      ASSERT_EQ(source, back) << n << " x " << k;
    }
  // Against checkpoint bytes (codes and scales) of a usual size.
  EXPECT_LE(nvfp4::tile_bytes(768), size_t(32 * 768) * 9 / 16 * 102 / 100);
}

TEST(Nvfp4, TheDeviceMatchesTheScalarDecoder) {
  std::mt19937 rng(32);
  struct Shape {
    int n, k;
  };
  for (const Shape s : {Shape{32, 32}, Shape{33, 16}, Shape{70, 304}, Shape{5, 2064}}) {
    SCOPED_TRACE(std::to_string(s.n) + " x " + std::to_string(s.k));
    const size_t row_bytes = nvfp4::source_row_bytes(s.k);
    std::vector<uint8_t> source = random_bytes(size_t(s.n) * row_bytes, rng);
    for (int r = 0; r < s.n; r++) {
      uint8_t* row = source.data() + r * row_bytes;
      store_u32(row, std::bit_cast<uint32_t>(std::ldexp(1.0f + float(rng() % 1000) / 1000, -9)));
      for (int b = 0; b < s.k / nvfp4::kBlock; b++) {
        uint8_t& scale = row[4 + b * nvfp4::kBlockBytes];
        if ((scale & 0x7f) == 0x7f) scale = 0x81;  // a NaN
      }
    }
    const int tiles = tile_count(s.n);
    std::vector<uint8_t> packed(tiles * nvfp4::tile_bytes(s.k));
    for (int t = 0; t < tiles; t++) {
      const uint8_t* rows[kTileRows];
      for (int r = 0; r < kTileRows; r++)
        rows[r] = t * 32 + r < s.n ? source.data() + (t * 32 + r) * row_bytes : nullptr;
      nvfp4::pack(s.k, rows, packed.data() + t * nvfp4::tile_bytes(s.k));
    }
    const DeviceArray<uint8_t> weight(packed);
    const testing::Input x(9, s.k, rng);
    const DeviceArray<float> dx(x.values);
    std::vector<float> most;
    for (const int rows : {9, 1, 2}) {
      const DeviceArray<float> out(size_t(rows) * 128);
      const LinearTarget target{weight.data(), WeightFormat::kF32, s.n, nullptr, out.data(), 128};
      FT_EXPECT_CUDA(launch_linear_nvfp4({dx.data(), x.stride}, rows, s.k, target, nullptr));
      const std::vector<float> values = out.read();
      if (most.empty()) most = values;
      for (int r = 0; r < rows; r++)
        for (int i = 0; i < s.n; i++)
          ASSERT_EQ(values[size_t(r) * 128 + i], most[size_t(r) * 128 + i]) << rows << " rows";
    }
    std::vector<float> w(static_cast<size_t>(s.k));
    for (int r = 0; r < x.rows; r++)
      for (int i = 0; i < s.n; i++) {
        nvfp4::decode(s.k, source.data() + i * row_bytes, w.data());
        double sum = 0, magnitude = 0;
        for (int j = 0; j < s.k; j++) {
          const double product = double(w[size_t(j)]) * bf16_to_f32(f32_to_bf16(x.row(r)[j]));
          sum += product;
          magnitude += std::abs(product);
        }
        // As exact_rows(), and one rounding for the row's scale.
        ASSERT_NEAR(most[size_t(r) * 128 + i], sum, magnitude * (s.k / 16 + 33) * 0x1p-23)
            << "row " << r << " column " << i;
      }
  }
}

}  // namespace
}  // namespace freetoken::cuda
