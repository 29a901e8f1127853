// How attention reads memory, as the emulator counts it: keys and values 16 bytes a thread side by side, no bank conflict of
// more than two ways. In race builds, which are those that count.
#include "cuda/kernels/attention_support.h"
#include "cuda/kernels/norm.h"

#ifdef FT_EMU_RACE
#include "emulator/memory_stats.h"

namespace freetoken::cuda {
namespace {

using testing::AttentionCase;
using testing::Cache;
using testing::DeviceArray;
using testing::DeviceStep;
using testing::Rows2d;

class AttentionAccess : public ::testing::TestWithParam<AttentionCase> {};

TEST_P(AttentionAccess, ReadsTheCacheWideAndCoalesced) {
  const AttentionCase& c = GetParam();
  std::mt19937 rng(5);
  Cache cache(c.cache, c.sequences, rng, 32);  // whole sectors, as pages of whole layers are
  const DeviceArray<uint8_t> pool(cache.bytes());
  const DeviceStep step(c.rows, {cache.pages()});
  const int q_heads = c.cache.kv_heads * c.group, partitions = 2;
  Rows2d q(step.rows(), q_heads * c.cache.qk_dim);
  q.fill(rng);
  const DeviceArray<float> device_q(q.values), out(size_t(step.rows() * q_heads * c.cache.v_dim)),
      scratch(size_t(attention_scratch_floats(step.rows(), q_heads, c.cache.v_dim, partitions)));
  const AttentionView view{device_q.data(), q.stride, out.data(), int64_t(q_heads) * c.cache.v_dim, q_heads, 0, 0.1f, 0, nullptr};
  emu::begin_memory_stats();
  FT_EXPECT_CUDA(launch_attention_split(step.view(), step.rows(), cache.view(pool.data()), view, partitions, scratch.data(), nullptr));
  FT_EXPECT_CUDA(launch_attention_rows(step.view(), step.rows(), cache.view(pool.data()), view, nullptr));
  FT_EXPECT_CUDA(cudaDeviceSynchronize());
  const std::vector<emu::AccessStats> stats = emu::end_memory_stats();
  for (const char* kernel : {"attention_split", "attention_rows"}) {
    EXPECT_LE(emu::worst_bank_conflict(stats, kernel), 2.0) << kernel;
    // The rest are queries, page tables and positions.
    EXPECT_GE(emu::wide_coalesced_share(stats, kernel), 0.9) << kernel;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionAccess,
                         ::testing::Values(AttentionCase{{false, 64, 1, 128, 128}, 4, 0, 0, false, {512}, {{0, 511}}},
                                           AttentionCase{{false, 64, 1, 64, 64}, 8, 0, 0, false, {512}, {{0, 511}}},
                                           AttentionCase{{true, 64, 1, 64, 64}, 1, 0, 0, false, {512}, {{0, 511}}}));

TEST(NormAccess, ReadsRowsWideAndCoalesced) {
  const DeviceArray<float> x(std::vector<float>(2 * 2048, 0.5f)), out(size_t(2 * 2048)), w(std::vector<float>(2048, 1.0f));
  emu::begin_memory_stats();
  FT_EXPECT_CUDA(launch_norm({false, false, 1e-6f, w.data(), nullptr}, x.data(), 2048, 2, 2048, out.data(), 2048, nullptr));
  FT_EXPECT_CUDA(cudaDeviceSynchronize());
  const std::vector<emu::AccessStats> stats = emu::end_memory_stats();
  EXPECT_LE(emu::worst_bank_conflict(stats, "norm_rows"), 1.0);
  EXPECT_EQ(emu::wide_coalesced_share(stats, "norm_rows"), 1.0);
}

}  // namespace
}  // namespace freetoken::cuda
#endif
