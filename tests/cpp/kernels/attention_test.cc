// Attention kernels over a paged cache whose unwritten bytes are NaN: against double precision, between ISA levels, and
// for any grouping of queries.
#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "core/fp_env.h"
#include "core/math.h"

namespace freetoken {
namespace {

constexpr double kU = 0x1p-24;

struct Shape {
  DType dtype;
  int qk_dim, v_dim;
};

// Independent of core/dtype.h: the nearest bf16, ties to even, for normal numbers.
float nearest_bf16(float x) {
  const float low = std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0xffff0000u);
  const float high = std::bit_cast<float>((std::bit_cast<uint32_t>(x) & 0xffff0000u) + 0x10000u);
  const double to_low = std::fabs(double(x) - low), to_high = std::fabs(double(high) - x);
  if (to_low != to_high) return to_low < to_high ? low : high;
  return std::bit_cast<uint32_t>(low) & 0x10000u ? high : low;
}

// A cache of shuffled pages that holds `positions` keys and values; every other byte is NaN.
class Cache {
 public:
  Cache(Shape shape, int positions, uint32_t seed) : shape_(shape), rng_(seed) {
    const int tokens = 64, count = (positions + tokens - 1) / tokens, value_bytes = dtype_bytes(shape.dtype);
    std::vector<int32_t> ids(size_t(count) + 5);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), rng_);
    pages_.assign(ids.begin(), ids.begin() + count);
    const int64_t key_bytes = int64_t(shape.qk_dim) * tokens * value_bytes,
                  v_bytes = int64_t(shape.v_dim) * tokens * value_bytes;
    const int64_t page_bytes = 64 + key_bytes + 32 + v_bytes + 64;  // other heads lie around
    bytes_.assign(size_t(page_bytes) * ids.size(), 0xff);           // 0xffff and 0xffffffff are NaN
    head_ = {bytes_.data() + 64,
             bytes_.data() + 64 + key_bytes + 32,
             page_bytes,
             pages_.data(),
             tokens,
             shape.dtype,
             shape.qk_dim,
             shape.v_dim};
    std::normal_distribution<float> normal;
    for (int p = 0; p < positions; p++) {
      k_.push_back(std::vector<float>(shape.qk_dim));
      v_.push_back(std::vector<float>(shape.v_dim));
      for (float& x : k_.back()) x = normal(rng_);
      for (float& x : v_.back()) x = normal(rng_);
    }
  }

  void fill(const AttentionKernels& kernels, int positions) {
    std::vector<int> order(positions);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), rng_);
    for (int p : order) kernels.append(head_, p, k_[p].data(), v_[p].data());
  }
  void fill(const AttentionKernels& kernels) { fill(kernels, int(k_.size())); }
  void clear() { std::fill(bytes_.begin(), bytes_.end(), uint8_t(0xff)); }

  float key(int p, int d) const { return shape_.dtype == DType::kF32 ? k_[p][d] : nearest_bf16(k_[p][d]); }
  float value(int p, int d) const { return shape_.dtype == DType::kF32 ? v_[p][d] : nearest_bf16(v_[p][d]); }
  const KvHead& head() const { return head_; }
  const std::vector<uint8_t>& bytes() const { return bytes_; }
  std::vector<std::vector<float>>& keys() { return k_; }

 private:
  Shape shape_;
  std::mt19937 rng_;
  std::vector<int32_t> pages_;
  std::vector<uint8_t> bytes_;
  std::vector<std::vector<float>> k_, v_;
  KvHead head_;
};

struct Query {
  std::vector<float> q;
  int begin, end;
};

// Partition by partition, as an Ops does: all queries of the group share the calls.
std::vector<std::vector<float>> attend(const AttentionKernels& kernels, const KvHead& head,
                                       const std::vector<Query>& group, float scale) {
  Queries queries;
  queries.scale = scale;
  int last = 0;
  for (const Query& q : group) {
    queries.q[queries.count] = q.q.data();
    queries.begin[queries.count] = q.begin;
    queries.end[queries.count++] = q.end;
    last = std::max(last, q.end);
  }
  const size_t count = group.size();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> scores(count * kAttentionPartition, kNaN), m(count, -INFINITY), l(count, kNaN), m_p(count),
      l_p(count);
  std::vector<std::vector<float>> acc(count, std::vector<float>(head.v_dim, kNaN)), acc_p = acc, out = acc;
  std::vector<float*> pointers;
  for (auto& a : acc_p) pointers.push_back(a.data());
  for (int p = 0; p * kAttentionPartition < last; p++) {
    kernels.partition(head, queries, p, scores.data(), m_p.data(), l_p.data(), pointers.data());
    for (size_t i = 0; i < count; i++) {
      EXPECT_EQ(m_p[i] == -INFINITY,
                group[i].begin >= (p + 1) * kAttentionPartition || group[i].end <= p * kAttentionPartition);
      kernels.fold(&m[i], &l[i], acc[i].data(), m_p[i], l_p[i], acc_p[i].data(), head.v_dim);
    }
  }
  for (size_t i = 0; i < count; i++) kernels.finish(l[i], acc[i].data(), head.v_dim, out[i].data());
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && !std::memcmp(a.data(), b.data(), a.size() * sizeof(float));
}

const std::vector<Shape> kShapes = {{DType::kF32, 64, 64},  {DType::kBF16, 64, 64},  {DType::kF32, 24, 16},
                                    {DType::kBF16, 17, 48}, {DType::kBF16, 128, 80}, {DType::kF32, 1, 32}};
const std::vector<int> kEnds = {1,   2,   15,  16,  17,  31,  32,  33,  63,  64, 65,
                                127, 129, 255, 256, 257, 300, 511, 512, 513, 700};

class AttentionLevel : public ::testing::TestWithParam<IsaLevel> {
 protected:
  void SetUp() override { set_denormals_to_zero(); }
  const AttentionKernels& kernels = attention_kernels(GetParam());
  std::mt19937 rng{5};

  Query query(const Shape& shape, int begin, int end) {
    std::normal_distribution<float> normal;
    Query q{std::vector<float>(shape.qk_dim), begin, end};
    for (float& x : q.q) x = normal(rng);
    return q;
  }
};

// Error bound: a score is a chain of qk_dim fmas and one product, its error moves the weights by twice as much; the
// values are a chain over the visible positions; exp and the folds add a few units.
TEST_P(AttentionLevel, MatchesDoublePrecision) {
  for (const Shape& shape : kShapes) {
    Cache cache(shape, 700, 1);
    cache.fill(kernels);
    const float scale = 1.0f / std::sqrt(float(shape.qk_dim));
    for (int end : kEnds)
      for (int window : {0, 1, 33, 300}) {
        const Query q = query(shape, window ? std::max(0, end - window) : 0, end);
        const std::vector<float> got = attend(kernels, cache.head(), {q}, scale)[0];
        std::vector<double> s(end);
        double highest = -INFINITY, worst = 0, total = 0;
        for (int j = q.begin; j < end; j++) {
          double size = 0;
          for (int d = 0; d < shape.qk_dim; d++) {
            s[j] += double(q.q[d]) * cache.key(j, d);
            size += std::fabs(double(q.q[d]) * cache.key(j, d));
          }
          s[j] *= scale;
          worst = std::max(worst, (shape.qk_dim + 1) * kU * size * scale + kU * std::fabs(s[j]));
          highest = std::max(highest, s[j]);
        }
        for (int j = q.begin; j < end; j++) total += s[j] = std::exp(s[j] - highest);
        for (int d = 0; d < shape.v_dim; d++) {
          double exact = 0, size = 0;
          for (int j = q.begin; j < end; j++) {
            exact += s[j] / total * cache.value(j, d);
            size += s[j] / total * std::fabs(cache.value(j, d));
          }
          ASSERT_NEAR(got[d], exact, (2 * worst + (end - q.begin + 48) * kU) * size)
              << "qk " << shape.qk_dim << ", v " << shape.v_dim << ", [" << q.begin << ", " << end << "), " << d;
        }
      }
  }
}

TEST_P(AttentionLevel, EqualsScalarInAnyGroup) {
  const AttentionKernels& scalar = attention_kernels(IsaLevel::kScalar);
  for (const Shape& shape : kShapes) {
    Cache cache(shape, 700, 2), other(shape, 700, 2);
    cache.fill(kernels);
    other.fill(scalar);
    ASSERT_EQ(cache.bytes(), other.bytes()) << "append";
    for (int round = 0; round < 24; round++) {
      const int count = round < 16 ? round + 1 : kMaxQueries;
      std::vector<Query> group;
      const int base = kEnds[rng() % kEnds.size()], window = rng() % 3 ? 0 : 1 + int(rng() % 300);
      for (int i = 0; i < count; i++) {
        // Rows of one chunk, heads of one row, or anything at all.
        const int end = round % 3 == 0 ? std::min(700, base + i) : round % 3 == 1 ? base : kEnds[rng() % kEnds.size()];
        group.push_back(query(shape, window ? std::max(0, end - window) : 0, end));
      }
      const auto together = attend(kernels, cache.head(), group, 0.2f);
      for (int i = 0; i < count; i++) {
        EXPECT_TRUE(same_bits(together[i], attend(kernels, cache.head(), {group[i]}, 0.2f)[0]))
            << "alone, " << count << ", " << i;
        EXPECT_TRUE(same_bits(together[i], attend(scalar, cache.head(), {group[i]}, 0.2f)[0]))
            << "scalar, " << count << ", " << i;
      }
    }
  }
}

// A query that ends at p sees the same bits whether or not later positions are written, on pages it shares with them or
// not; what lies in unwritten places is NaN and would show.
TEST_P(AttentionLevel, NothingBeyondTheEndMatters) {
  for (const Shape& shape : kShapes) {
    Cache cache(shape, 700, 3);
    for (int end : kEnds) {
      const std::vector<Query> group = {query(shape, 0, end), query(shape, end / 2, end), query(shape, end - 1, end)};
      cache.clear();
      cache.fill(kernels, end);
      const auto a = attend(kernels, cache.head(), group, 0.3f);
      cache.fill(kernels);
      const auto b = attend(kernels, cache.head(), group, 0.3f);
      for (size_t i = 0; i < group.size(); i++) {
        EXPECT_TRUE(same_bits(a[i], b[i])) << end;
        for (float x : a[i]) ASSERT_TRUE(std::isfinite(x)) << end;
      }
    }
  }
}

// Scores that overflow exp's range on both sides: the largest alone decides, to the bit.
TEST_P(AttentionLevel, LargeScores) {
  const Shape shape{DType::kF32, 1, 16};
  Cache cache(shape, 600, 4);
  for (int p = 0; p < 600; p++) cache.keys()[p][0] = p == 321 ? 3e4f : -3e4f;
  cache.fill(kernels);
  const auto out = attend(kernels, cache.head(), {{{1.0f}, 0, 600}, {{-1.0f}, 321, 322}, {{1.0f}, 0, 321}}, 1.0f);
  for (int d = 0; d < 16; d++) {
    EXPECT_EQ(out[0][d], cache.value(321, d));
    EXPECT_EQ(out[1][d], cache.value(321, d));
    double mean = 0;
    for (int p = 0; p < 321; p++) mean += cache.value(p, d) / 321;
    EXPECT_NEAR(out[2][d], mean, 321 * kU * 2);
  }
}

// The lanes' exp is exp_f32: with keys of dimension 1 and a largest score of 0 the scratch holds exp of the keys.
TEST_P(AttentionLevel, ExponentialsAreTheScalarOnes) {
  const Shape shape{DType::kF32, 1, 16};
  std::vector<float> arguments;
  for (uint32_t bits = 0x00800000u; bits < 0x7f000000u; bits += 40009) arguments.push_back(-std::bit_cast<float>(bits));
  arguments.insert(arguments.end(), {-87.0f, std::nextafter(-87.0f, -100.0f), std::nextafter(-87.0f, 0.0f), -0.0f});
  Cache cache(shape, kAttentionPartition, 6);
  std::vector<float> scores(kAttentionPartition), acc(16);
  float *acc_pointer = acc.data(), m = 0, l = 0, one = 1.0f;
  for (size_t first = 0; first < arguments.size(); first += kAttentionPartition - 1) {
    for (int p = 0; p < kAttentionPartition; p++)
      cache.keys()[p][0] = p && first + p - 1 < arguments.size() ? arguments[first + p - 1] : 0.0f;
    cache.fill(kernels);
    Queries queries;
    queries.count = 1, queries.q[0] = &one, queries.begin[0] = 0, queries.end[0] = kAttentionPartition,
    queries.scale = 1.0f;
    kernels.partition(cache.head(), queries, 0, scores.data(), &m, &l, &acc_pointer);
    ASSERT_EQ(m, 0.0f);
    for (int p = 0; p < kAttentionPartition; p++)
      ASSERT_EQ(std::bit_cast<uint32_t>(scores[p]), std::bit_cast<uint32_t>(exp_f32(cache.keys()[p][0] * 1.0f - 0.0f)))
          << cache.keys()[p][0];
  }
}

std::string level_name(const ::testing::TestParamInfo<IsaLevel>& info) { return isa_name(info.param); }
INSTANTIATE_TEST_SUITE_P(Levels, AttentionLevel, ::testing::ValuesIn(supported_isa_levels()), level_name);

}  // namespace
}  // namespace freetoken
