// Paged attention against doubles over the cache's contents; and bit for bit: a row alone, in a batch, split over partitions
// or walked. The cache is NaN where nothing was written and page tables end in -1, so a position too many shows.
#include "cuda/kernels/attention.h"

#include "cuda/kernels/attention_support.h"

namespace freetoken::cuda {
namespace {

using testing::AttentionCase;
using testing::Cache;
using testing::DeviceArray;
using testing::DeviceStep;
using testing::exact_attention;
using testing::random_values;
using testing::Rows2d;
using testing::same_bits;

// Rows of one sequence from `first` on.
std::vector<DeviceStep::Row> chunk(int sequence, int first, int count) {
  std::vector<DeviceStep::Row> rows;
  for (int i = 0; i < count; i++) rows.push_back({.sequence = sequence, .position = first + i});
  return rows;
}
std::vector<DeviceStep::Row> join(std::vector<std::vector<DeviceStep::Row>> parts) {
  std::vector<DeviceStep::Row> rows;
  for (const auto& part : parts) rows.insert(rows.end(), part.begin(), part.end());
  return rows;
}

class Attention : public ::testing::TestWithParam<AttentionCase> {
 protected:
  AttentionCase c_ = GetParam();
  std::mt19937 rng_{17};
  Cache cache_{c_.cache, c_.sequences, rng_};
  DeviceArray<uint8_t> pool_{cache_.bytes()};
  int q_heads_ = c_.cache.kv_heads * c_.group;
  float scale_ = 2.0f / std::sqrt(float(c_.cache.qk_dim));
  std::vector<float> sinks_ = random_values(size_t(q_heads_), rng_, 2.0f);
  DeviceArray<float> device_sinks_{sinks_};

  Rows2d run(const Rows2d& q, const std::vector<DeviceStep::Row>& rows, bool split, int spare_partitions = 0) {
    const DeviceStep step(rows, {cache_.pages()});
    Rows2d out(q.rows, q_heads_ * c_.cache.v_dim);
    const DeviceArray<float> device_q(q.values), device_out(out.values);
    const AttentionView view{device_q.data(), q.stride, device_out.data(), out.stride, q_heads_, c_.window, scale_, c_.softcap,
                             c_.sinks ? device_sinks_.data() : nullptr};
    if (split) {
      int last = 0;
      for (const auto& row : rows) last = std::max(last, row.position);
      const int partitions = last / kAttentionPartition + 1 + spare_partitions;
      const DeviceArray<float> scratch(size_t(attention_scratch_floats(q.rows, q_heads_, c_.cache.v_dim, partitions)));
      EXPECT_EQ(int(launch_attention_split(step.view(), q.rows, cache_.view(pool_.data()), view, partitions, scratch.data(), nullptr)), 0);
      EXPECT_EQ(int(cudaDeviceSynchronize()), 0);
    } else {
      EXPECT_EQ(int(launch_attention_rows(step.view(), q.rows, cache_.view(pool_.data()), view, nullptr)), 0);
    }
    out.values = device_out.read();
    return out;
  }
};

TEST_P(Attention, IsNearTheExactValueAndOneRowIsTheSameEverywhere) {
  Rows2d q(int(c_.rows.size()), q_heads_ * c_.cache.qk_dim);
  q.fill(rng_);
  const Rows2d walked = run(q, c_.rows, false), split = run(q, c_.rows, true, 2);
  EXPECT_TRUE(walked.marks_stay());
  EXPECT_TRUE(split.marks_stay());
  EXPECT_TRUE(same_bits(walked.values.data(), split.values.data(), int(walked.values.size())));
  for (int r = 0; r < q.rows; r++) {
    const auto& row = c_.rows[size_t(r)];
    for (int h = 0; h < q_heads_; h++) {
      const auto exact = exact_attention(cache_, c_, row.sequence, row.position, h / c_.group, q.row(r) + h * c_.cache.qk_dim,
                                         scale_, c_.sinks ? &sinks_[size_t(h)] : nullptr);
      for (int d = 0; d < c_.cache.v_dim; d++)
        ASSERT_LE(std::fabs(walked.row(r)[h * c_.cache.v_dim + d] - exact.value[size_t(d)]), exact.bound[size_t(d)])
            << "row " << r << ", head " << h << ", element " << d << ", exact " << exact.value[size_t(d)];
    }
  }
  for (int r = 0; r < q.rows; r += std::max(1, q.rows / 4)) {
    Rows2d one(1, q.cols);
    std::copy_n(q.row(r), q.cols, one.row(0));
    for (const bool splits : {false, true})
      EXPECT_TRUE(same_bits(run(one, {c_.rows[size_t(r)]}, splits).row(0), walked.row(r), walked.cols)) << "row " << r;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Attention,
    ::testing::Values(
        // The first position; GQA of two; a tail of a partition.
        AttentionCase{{false, 64, 2, 64, 64}, 2, 0, 0, false, {1, 70}, join({chunk(0, 0, 1), chunk(1, 69, 1)})},
        // Across a partition and page boundaries, ragged: decode rows beside a chunk.
        AttentionCase{{false, 64, 2, 128, 128}, 2, 0, 0, false, {259, 20, 515}, join({chunk(0, 254, 5), chunk(1, 19, 1), chunk(2, 514, 1)})},
        AttentionCase{{true, 64, 1, 64, 64}, 4, 0, 0, false, {258, 9}, join({chunk(0, 255, 3), chunk(1, 0, 9)})},
        // Windows: shorter than the sequence, ending at a partition's edge, of one position.
        AttentionCase{{false, 64, 1, 64, 64}, 2, 96, 0, false, {400}, chunk(0, 345, 12)},
        AttentionCase{{false, 16, 1, 32, 32}, 1, 256, 0, false, {530}, join({chunk(0, 510, 3), chunk(0, 529, 1)})},
        AttentionCase{{true, 64, 1, 32, 32}, 2, 1, 0, false, {300}, chunk(0, 254, 4)},
        // Head sizes that leave threads over, keys and values of different sizes, groups that do not divide.
        AttentionCase{{false, 64, 1, 192, 128}, 3, 0, 0, false, {80}, chunk(0, 76, 4)},
        AttentionCase{{false, 48, 2, 80, 48}, 3, 0, 0, false, {300}, chunk(0, 290, 3)},
        AttentionCase{{true, 32, 1, 16, 16}, 12, 0, 0, false, {33, 5}, join({chunk(0, 31, 2), chunk(1, 2, 3)})},
        AttentionCase{{false, 64, 1, 256, 256}, 8, 0, 0, false, {65}, chunk(0, 63, 2)},
        // Soft cap and sinks.
        AttentionCase{{false, 64, 1, 64, 64}, 2, 0, 3.0f, false, {270}, chunk(0, 268, 2)},
        AttentionCase{{true, 64, 2, 64, 64}, 4, 64, 0, true, {330}, chunk(0, 326, 4)}));

TEST(AttentionKernels, RefuseWhatTheyHaveNoLayoutFor) {
  AttentionView view;
  view.q_heads = 4;
  const auto run = [&](KvView kv) { return int(launch_attention_rows({}, 1, kv, view, nullptr)); };
  EXPECT_EQ(run({nullptr, 4096, 0, 64, 2, 512, 64}), int(cudaErrorNotSupported));   // too large
  EXPECT_EQ(run({nullptr, 4096, 0, 64, 2, 60, 64}), int(cudaErrorNotSupported));    // not whole granules
  EXPECT_EQ(run({nullptr, 4096, 0, 64, 3, 64, 64}), int(cudaErrorNotSupported));    // 4 heads over 3
  EXPECT_EQ(run({nullptr, 4090, 0, 64, 2, 64, 64}), int(cudaErrorNotSupported));    // pages out of alignment
  FT_EXPECT_CUDA(launch_attention_rows({}, 0, {nullptr, 4096, 0, 64, 2, 64, 64}, view, nullptr));
}

// A broken key reaches the rows that see it, and no others of the same block.
TEST(AttentionKernels, NanStaysWithTheRowsThatSeeIt) {
  std::mt19937 rng(3);
  const AttentionCase c{{true, 64, 1, 16, 16}, 1, 0, 0, false, {8}, {}};
  Cache cache(c.cache, c.sequences, rng);
  const float nan = NAN;
  std::memcpy(cache.bytes().data() + cache.value_at(0, 0, 5, 3), &nan, 4);
  std::memcpy(cache.bytes().data() + cache.key_at(0, 0, 6, 0), &nan, 4);
  const DeviceArray<uint8_t> pool(cache.bytes());
  const DeviceStep step(chunk(0, 3, 5), {cache.pages()});
  Rows2d q(5, 16), out(5, 16);
  q.fill(rng);
  const DeviceArray<float> device_q(q.values), device_out(out.values);
  const AttentionView view{device_q.data(), q.stride, device_out.data(), out.stride, 1, 0, 0.25f, 0, nullptr};
  FT_EXPECT_CUDA(launch_attention_rows(step.view(), 5, cache.view(pool.data()), view, nullptr));
  out.values = device_out.read();
  for (int r = 0; r < 5; r++)
    for (int d = 0; d < 16; d++) EXPECT_EQ(std::isnan(out.row(r)[d]), r >= 3 || (r == 2 && d == 3)) << r << " " << d;
}

TEST(AttentionKernels, PagesAreCopiedInTheOrderOfTheList) {
  constexpr int64_t kPageBytes = 4112;
  std::mt19937 rng(5);
  std::vector<uint8_t> pages = freetoken::testing::random_bytes(5 * kPageBytes, rng);
  const std::vector<int32_t> from_to = {0, 1, 1, 2, 3, 0, 0, 4};
  const DeviceArray<uint8_t> pool(pages);
  const DeviceArray<int32_t> list(from_to);
  FT_EXPECT_CUDA(launch_copy_pages(pool.data(), kPageBytes, list.data(), 4, nullptr));
  for (size_t i = 0; i < from_to.size(); i += 2)
    std::memcpy(pages.data() + from_to[i + 1] * kPageBytes, pages.data() + from_to[i] * kPageBytes, kPageBytes);
  EXPECT_EQ(pool.read(), pages);
}

}  // namespace
}  // namespace freetoken::cuda
