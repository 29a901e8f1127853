// Norm, rotation and append against the CPU's scalar kernels (bit for bit where no sum is involved) and against doubles.
#include "cuda/kernels/rope.h"

#include "cuda/kernels/attention_support.h"
#include "kernels/row_ops.h"

namespace freetoken::cuda {
namespace {

using testing::Cache;
using testing::CacheShape;
using testing::DeviceArray;
using testing::DeviceStep;
using testing::random_values;
using testing::Rows2d;
using testing::same_bits;

struct Case {
  CacheShape cache;
  int group, half, offset;   // half 0 = no rotation
  bool interleaved, norm, plus_one;
  float attention_factor;
};
void PrintTo(const Case& c, std::ostream* os) {
  *os << (c.cache.f32 ? "f32" : "bf16") << " dims " << c.cache.qk_dim << "," << c.cache.v_dim << " half " << c.half << "+" << c.offset
      << (c.interleaved ? " interleaved" : "") << (c.norm ? " norm" : "");
}

const std::vector<DeviceStep::Row> kRows = {{0, 0}, {0, 1}, {1, 63}, {2, 64}, {2, 65}, {3, 100003}};
// Sequence 3 has only the page that its row needs.
std::vector<std::vector<int32_t>> pages_of(int page_tokens) {
  std::vector<std::vector<int32_t>> pages;
  int32_t next = 5;
  for (const int position : {1, 63, 65}) {
    std::vector<int32_t> list;
    for (int p = 0; p <= position / page_tokens; p++) list.push_back(next--);
    pages.push_back(list);
    if (next < 1) next = 11;
  }
  std::vector<int32_t> list(static_cast<size_t>(100003 / page_tokens), -1);
  list.push_back(0);
  pages.push_back(list);
  return pages;
}
constexpr int kPages = 12;

class Rope : public ::testing::TestWithParam<Case> {};

TEST_P(Rope, PreparesHeadsAndAppends) {
  const Case c = GetParam();
  std::mt19937 rng(23);
  const RowKernels& cpu = row_kernels(IsaLevel::kScalar);
  const int rows = int(kRows.size()), q_heads = c.cache.kv_heads * c.group, qk = c.cache.qk_dim, v_dim = c.cache.v_dim;
  const int element = c.cache.f32 ? 4 : 2;
  Rows2d q(rows, q_heads * qk), k(rows, c.cache.kv_heads * qk), v(rows, c.cache.kv_heads * v_dim);
  for (Rows2d* t : {&q, &k, &v}) t->fill(rng, 2.0f);
  const std::vector<float> q_weight = random_values(size_t(qk), rng), k_weight = random_values(size_t(qk), rng);
  std::vector<float> inv_freq;
  for (int i = 0; i < c.half; i++) inv_freq.push_back(float(std::pow(10000.0, -double(i) / std::max(1, c.half))));

  const DeviceStep step(kRows, {pages_of(c.cache.page_tokens)});
  const DeviceArray<float> device_q(q.values), device_k(k.values), device_v(v.values), device_q_weight(q_weight),
      device_k_weight(k_weight), device_freq(inv_freq), angles(size_t(rows * 2 * c.half));
  const int64_t page_bytes = int64_t(c.cache.kv_heads) * (qk + v_dim) * c.cache.page_tokens * element + 16;
  const std::vector<uint8_t> untouched(size_t(page_bytes) * kPages, 0xab);
  const DeviceArray<uint8_t> pool(untouched);
  const KvView kv{pool.data(), page_bytes, 16, c.cache.page_tokens, c.cache.kv_heads, qk, v_dim, 0, c.cache.f32};
  const RopeView rope{device_freq.data(), c.half, c.attention_factor, c.interleaved, c.offset};
  constexpr float kEps = 1e-6f;
  const auto norm_of = [&](const DeviceArray<float>& w) { return HeadNorm{c.norm, c.plus_one, kEps, w.data()}; };
  const PrepareArgs args{device_q.data(), device_k.data(), device_v.data(), q.stride, k.stride, v.stride, q_heads,
                         norm_of(device_q_weight), norm_of(device_k_weight), rope, c.half ? angles.data() : nullptr};
  FT_EXPECT_CUDA(launch_rope_angles(step.view(), rows, rope, angles.data(), nullptr));
  FT_EXPECT_CUDA(launch_prepare_heads(step.view(), rows, kv, args, nullptr));

  // The CPU's way: fp32 angle, its cosine in double.
  std::vector<float> cosines(size_t(rows * c.half)), sines(cosines);
  const std::vector<float> got_angles = angles.read();
  for (int r = 0; r < rows; r++)
    for (int i = 0; i < c.half; i++) {
      const double angle = double(float(kRows[size_t(r)].position) * inv_freq[size_t(i)]);
      cosines[size_t(r * c.half + i)] = float(std::cos(angle)) * c.attention_factor;
      sines[size_t(r * c.half + i)] = float(std::sin(angle)) * c.attention_factor;
      EXPECT_EQ(got_angles[size_t(r * 2 * c.half + i)], cosines[size_t(r * c.half + i)]);
      EXPECT_EQ(got_angles[size_t(r * 2 * c.half + c.half + i)], sines[size_t(r * c.half + i)]);
    }
  // Sums of squares on 16 lanes there and 32 here: at most qk / 16 + 9 roundings each, halved under the root, and a few more.
  const double tolerance = c.norm ? (qk / 16 + 9 + 8) * 0x1p-24 : 0.0;
  const auto expect_head = [&](const float* from, const float* weight, int r, std::vector<float>& head) {
    head.assign(from, from + qk);
    if (c.norm) cpu.rms_norm(head.data(), weight, c.plus_one, kEps, qk, head.data());
    double largest = 0.0;
    for (const float x : head) largest = std::max(largest, std::fabs(double(x)));
    if (c.half) cpu.rotate(head.data() + c.offset, &cosines[size_t(r * c.half)], &sines[size_t(r * c.half)], c.half, c.interleaved);
    return 2.0 * largest * tolerance * std::max(1.0f, c.attention_factor);  // of a pair's two terms
  };
  std::vector<float> head;
  Rows2d got_q = q;
  got_q.values = device_q.read();
  EXPECT_TRUE(got_q.marks_stay());
  for (int r = 0; r < rows; r++)
    for (int h = 0; h < q_heads; h++) {
      const double bound = expect_head(q.row(r) + h * qk, q_weight.data(), r, head);
      for (int d = 0; d < qk; d++) EXPECT_LE(std::fabs(double(got_q.row(r)[h * qk + d]) - head[size_t(d)]), bound) << r << " " << h << " " << d;
    }

  // Pages: the appended elements, and not a byte beside them.
  std::vector<uint8_t> got = pool.read(), expected = untouched;
  const auto pages = pages_of(c.cache.page_tokens);
  const int granule = 16 / element;
  const auto take = [&](int64_t at, float value, double bound) {
    float stored = 0.0f;
    if (c.cache.f32) {
      std::memcpy(&stored, got.data() + at, 4);
    } else {
      uint16_t half;
      std::memcpy(&half, got.data() + at, 2);
      stored = bf16_to_f32(half);
      if (bound == 0.0) value = bf16_to_f32(f32_to_bf16(value));
      else bound += std::fabs(value) * 0x1p-8;
    }
    EXPECT_LE(std::fabs(double(stored) - double(value)), bound) << at;
    std::memcpy(expected.data() + at, got.data() + at, size_t(element));
  };
  for (int r = 0; r < rows; r++)
    for (int h = 0; h < c.cache.kv_heads; h++) {
      const auto& row = kRows[size_t(r)];
      const int place = row.position % c.cache.page_tokens;
      const int64_t base = pages[size_t(row.sequence)][size_t(row.position / c.cache.page_tokens)] * page_bytes + 16 +
                           int64_t(h) * (qk + v_dim) * c.cache.page_tokens * element;
      const double bound = expect_head(k.row(r) + h * qk, k_weight.data(), r, head);
      for (int d = 0; d < qk; d++)
        take(base + ((int64_t(d / granule) * c.cache.page_tokens + place) * granule + d % granule) * element, head[size_t(d)], bound);
      for (int d = 0; d < v_dim; d++)
        take(base + (int64_t(qk) * c.cache.page_tokens + int64_t(place) * v_dim + d) * element, v.row(r)[h * v_dim + d], 0.0);
    }
  EXPECT_EQ(got, expected);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Rope,
                         ::testing::Values(Case{{false, 64, 2, 128, 128}, 2, 64, 0, false, true, false, 1.0f},
                                           Case{{true, 64, 1, 64, 64}, 4, 32, 0, false, false, false, 1.0f},
                                           Case{{false, 16, 2, 32, 32}, 1, 16, 0, false, false, false, 1.3f},
                                           Case{{true, 64, 1, 64, 48}, 2, 16, 32, true, true, true, 1.0f},
                                           Case{{false, 64, 1, 80, 80}, 3, 20, 0, false, true, false, 0.8f},
                                           Case{{false, 64, 3, 16, 16}, 1, 0, 0, false, true, false, 1.0f}));

TEST(RopeKernels, RefuseARotationThatPassesTheHead) {
  PrepareArgs args;
  float angle = 0;
  args.angles = &angle;
  args.rope.half = 33;
  EXPECT_EQ(int(launch_prepare_heads({}, 1, {nullptr, 4096, 0, 64, 1, 64, 64}, args, nullptr)), int(cudaErrorInvalidValue));
  FT_EXPECT_CUDA(launch_rope_angles({}, 0, args.rope, nullptr, nullptr));
}

}  // namespace
}  // namespace freetoken::cuda
