// Sectors and bank wavefronts of accesses whose cost is known on paper; counted in the race build only.
#ifdef FT_EMU_RACE
#include "emulator/memory_stats.h"

#include "cuda/emulator_test/support.h"
#include "cuda/kernels/device.h"

namespace freetoken::cuda {
namespace {

__global__ void wide_loads(const uint4* x, uint4* y) { store16(y + threadIdx.x, load16(x + threadIdx.x)); }
__global__ void narrow_loads(const uint32_t* x, uint32_t* y) { y[threadIdx.x] = x[threadIdx.x]; }
__global__ void strided_loads(const uint32_t* x, uint32_t* y) { y[threadIdx.x] = x[threadIdx.x * 8]; }
template <int Stride>
__global__ void columns(uint32_t* y) {
  FT_SHARED(uint32_t, s, [32 * 33]);
  for (int i = int(threadIdx.x); i < 32 * 33; i += 32) s[i] = 1;
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x * Stride];
}

template <class Launch>
std::vector<emu::AccessStats> stats_of(Launch launch) {
  emu::begin_memory_stats();
  launch();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return emu::end_memory_stats();
}

TEST(MemoryStats, WideLoadsCountAsOneRequest) {
  Device<uint4> x(32), y(32);
  const auto stats = stats_of([&] { FT_LAUNCH((wide_loads), dim3(1), dim3(32), 0, nullptr, x.p, y.p); });
  ASSERT_EQ(stats.size(), 2u);
  for (const auto& s : stats) {
    EXPECT_EQ(s.bytes, 16u);
    EXPECT_EQ(s.requests, 1u);
    EXPECT_EQ(s.transactions, 16u);
    EXPECT_EQ(s.ideal, 16u);
  }
  EXPECT_EQ(emu::wide_coalesced_share(stats, "wide_loads"), 1.0);
}

TEST(MemoryStats, NarrowAndStridedLoads) {
  Device<uint32_t> x(256), y(32);
  auto stats = stats_of([&] { FT_LAUNCH((narrow_loads), dim3(1), dim3(32), 0, nullptr, x.p, y.p); });
  EXPECT_EQ(emu::wide_coalesced_share(stats, "narrow_loads"), 0.0);
  for (const auto& s : stats) EXPECT_EQ(s.transactions, 4u);
  stats = stats_of([&] { FT_LAUNCH((strided_loads), dim3(1), dim3(32), 0, nullptr, x.p, y.p); });
  for (const auto& s : stats) EXPECT_EQ(s.worst, s.write ? 1.0 : 8.0);
}

TEST(MemoryStats, BankConflicts) {
  Device<uint32_t> y(32);
  EXPECT_EQ(emu::worst_bank_conflict(stats_of([&] { FT_LAUNCH((columns<1>), dim3(1), dim3(32), 0, nullptr, y.p); }),
                                     "columns"),
            1.0);
  EXPECT_EQ(emu::worst_bank_conflict(stats_of([&] { FT_LAUNCH((columns<2>), dim3(1), dim3(32), 0, nullptr, y.p); }),
                                     "columns"),
            2.0);
  EXPECT_EQ(emu::worst_bank_conflict(stats_of([&] { FT_LAUNCH((columns<32>), dim3(1), dim3(32), 0, nullptr, y.p); }),
                                     "columns"),
            32.0);
  EXPECT_EQ(emu::worst_bank_conflict(stats_of([&] { FT_LAUNCH((columns<33>), dim3(1), dim3(32), 0, nullptr, y.p); }),
                                     "columns"),
            1.0);
}

}  // namespace
}  // namespace freetoken::cuda
#endif
