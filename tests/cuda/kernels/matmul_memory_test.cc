// How the matmuls touch memory, as the emulator counts it: weights in coalesced 16-byte loads, no bank conflict above
// two-way. The race build alone counts.
#ifdef FT_EMU_RACE
#include "cuda/kernels/matmul.h"
#include "cuda/kernels/matmul_launch.h"
#include "cuda/kernels/matmul_support.h"
#include "emulator/memory_stats.h"

namespace freetoken::cuda {
namespace {

using testing::DeviceArray;

// Whole blocks, two pieces of K; rows of x lie a multiple of 32 bytes apart, as Ops::allocate() lays them.
constexpr int kN = 256, kK = 512;

struct Case {
  WeightFormat format;
  DeviceArray<uint8_t> weight;
  DeviceArray<float> x, out;

  explicit Case(WeightFormat f)
      : format(f), weight(packed(f)), x(std::vector<float>(32 * kK, 0.5f)), out(size_t(32) * kN) {}
  static std::vector<uint8_t> packed(WeightFormat f) {
    std::mt19937 rng(41);
    const std::vector<uint8_t> source = freetoken::testing::random_rows(f, kN, kK, rng);
    std::vector<uint8_t> bytes(packed_bytes(f, kN, kK));
    pack_matrix(f, kN, kK, source.data(), bytes.data());
    return bytes;
  }
  LinearTarget target() const { return {weight.data(), format, kN, nullptr, out.data(), kN}; }
};

// Of the sectors read from global memory, the rest are scales: 4 or 8 bytes for four rows, 64 in a row of lanes.
constexpr double kWideShare = 0.78;

void expect_gates(const std::vector<emu::AccessStats>& stats, const char* kernel) {
  EXPECT_LE(emu::worst_bank_conflict(stats, kernel), 2.0);
  EXPECT_GE(emu::wide_coalesced_share(stats, kernel), kWideShare);
  int wide = 0;
  for (const emu::AccessStats& s : stats) {
    if (s.shared || s.bytes < 16 || s.kernel.find(kernel) == std::string::npos) continue;
    wide++;
    EXPECT_EQ(s.transactions, s.ideal) << (s.write ? "a store" : "a load") << " of " << kernel << " is not coalesced";
  }
  EXPECT_GE(wide, 2) << "weights, and results";
}

class DeviceMatmulMemory : public ::testing::TestWithParam<WeightFormat> {};

TEST_P(DeviceMatmulMemory, LoadsAreWideAndBanksFree) {
  const Case c(GetParam());
  struct Variant {
    MatmulVariant variant;
    int rows;
    const char* kernel;
  };
  for (const Variant& v :
       {Variant{MatmulVariant::kDecode, 1, "matmul_decode"}, Variant{MatmulVariant::kDecode, 8, "matmul_decode"},
        Variant{MatmulVariant::kNarrow, 16, "matmul_tiles"}, Variant{MatmulVariant::kWide, 32, "matmul_tiles"}}) {
    SCOPED_TRACE(std::to_string(v.rows) + " rows");
    MatmulArgs args = dense_args({c.x.data(), kK}, v.rows, kK, int64_t(tile_bytes(GetParam(), kK)));
    args.targets = 1;
    args.target[0] = dense_target(c.target());
    emu::begin_memory_stats();
    FT_EXPECT_CUDA(launch_matmul(GetParam(), v.variant, args, 1, nullptr));
    FT_EXPECT_CUDA(cudaDeviceSynchronize());
    expect_gates(emu::end_memory_stats(), v.kernel);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, DeviceMatmulMemory,
                         ::testing::Values(WeightFormat::kBF16, WeightFormat::kQ8_0, WeightFormat::kQ4_0,
                                           WeightFormat::kQ4_1, WeightFormat::kQ6_K),
                         testing::format_case);

// x is read a value at a time here, the same for all lanes that have its k: weights are all the rest.
TEST(DeviceMatmulMemory, OfFp32Inputs) {
  for (const WeightFormat f : {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBF16}) {
    const Case c(f);
    emu::begin_memory_stats();
    FT_EXPECT_CUDA(launch_linear_f32({c.x.data(), kK}, 4, kK, c.target(), nullptr));
    FT_EXPECT_CUDA(cudaDeviceSynchronize());
    const std::vector<emu::AccessStats> stats = emu::end_memory_stats();
    EXPECT_LE(emu::worst_bank_conflict(stats, "matmul_f32"), 2.0);
    uint64_t weight_sectors = 0;
    for (const emu::AccessStats& s : stats)
      if (!s.shared && !s.write && s.bytes == 16) {
        EXPECT_EQ(s.transactions, s.ideal);
        weight_sectors += s.transactions;
      }
    EXPECT_EQ(weight_sectors * 32, packed_bytes(f, kN, kK)) << "every byte of the weights once, in 16-byte loads";
  }
}

}  // namespace
}  // namespace freetoken::cuda
#endif
