// A paged cache for tests: random keys and values, laid out by the page format's own words (attention.h), NaN wherever no
// position was written; and attention over it in double.
#pragma once
#include <limits>

#include "cuda/kernels/attention.h"
#include "cuda/kernels/rows_support.h"

namespace freetoken::cuda::testing {

struct CacheShape {
  bool f32 = false;
  int page_tokens = 64, kv_heads = 1, qk_dim = 64, v_dim = 64;
};

class Cache {
 public:
  // sequences[s]: positions that hold something. Pages are dealt out in a shuffled order. alignment: of layers and pages, in
  // bytes.
  Cache(const CacheShape& shape, const std::vector<int>& sequences, std::mt19937& rng, int alignment = 16)
      : shape_(shape), layer_offset_(3 * alignment), element_(shape.f32 ? 4 : 2) {
    const int64_t layer_bytes = int64_t(shape.kv_heads) * (shape.qk_dim + shape.v_dim) * shape.page_tokens * element_;
    page_bytes_ = int64_t(align_up(size_t(layer_offset_ + layer_bytes + 33), size_t(alignment)));
    int count = 0;
    for (const int tokens : sequences) count += (tokens + shape.page_tokens - 1) / shape.page_tokens;
    std::vector<int32_t> ids(static_cast<size_t>(count + 1));
    for (size_t i = 0; i < ids.size(); i++) ids[i] = int32_t(i);
    std::shuffle(ids.begin(), ids.end(), rng);
    bytes_.assign(size_t(count + 1) * size_t(page_bytes_), 0xff);  // NaN in both types
    for (const int tokens : sequences) {
      std::vector<int32_t> list;
      for (int p = 0; p * shape.page_tokens < tokens; p++) list.push_back(ids[--count]);
      pages_.push_back(list);
      for (int position = 0; position < tokens; position++)
        for (int head = 0; head < shape.kv_heads; head++) {
          for (int d = 0; d < shape.qk_dim; d++) put(key_at(int(pages_.size()) - 1, head, position, d), uniform(rng));
          for (int d = 0; d < shape.v_dim; d++) put(value_at(int(pages_.size()) - 1, head, position, d), uniform(rng));
        }
    }
  }

  const std::vector<std::vector<int32_t>>& pages() const { return pages_; }
  std::vector<uint8_t>& bytes() { return bytes_; }
  int64_t page_bytes() const { return page_bytes_; }
  KvView view(uint8_t* pool) const {
    return {pool, page_bytes_, layer_offset_, shape_.page_tokens, shape_.kv_heads, shape_.qk_dim, shape_.v_dim, 0, shape_.f32};
  }
  float get(int64_t at) const {
    if (shape_.f32) {
      float v;
      std::memcpy(&v, bytes_.data() + at, 4);
      return v;
    }
    uint16_t v;
    std::memcpy(&v, bytes_.data() + at, 2);
    return bf16_to_f32(v);
  }
  int64_t key_at(int sequence, int head, int position, int d) const {
    const int granule = 16 / element_, place = position % shape_.page_tokens;
    return head_at(sequence, head, position) +
           ((d / granule) * int64_t(shape_.page_tokens) * granule + place * granule + d % granule) * element_;
  }
  int64_t value_at(int sequence, int head, int position, int d) const {
    return head_at(sequence, head, position) +
           (int64_t(shape_.qk_dim) * shape_.page_tokens + int64_t(position % shape_.page_tokens) * shape_.v_dim + d) * element_;
  }

 private:
  static float uniform(std::mt19937& rng) { return std::uniform_real_distribution<float>(-1.0f, 1.0f)(rng); }
  void put(int64_t at, float v) {
    if (shape_.f32) return void(std::memcpy(bytes_.data() + at, &v, 4));
    const uint16_t half = f32_to_bf16(v);
    std::memcpy(bytes_.data() + at, &half, 2);
  }
  int64_t head_at(int sequence, int head, int position) const {
    const int32_t page = pages_[size_t(sequence)][size_t(position / shape_.page_tokens)];
    return page * page_bytes_ + layer_offset_ +
           head * int64_t(shape_.qk_dim + shape_.v_dim) * shape_.page_tokens * element_;
  }

  CacheShape shape_;
  int64_t layer_offset_, page_bytes_ = 0;
  int element_;
  std::vector<std::vector<int32_t>> pages_;
  std::vector<uint8_t> bytes_;
};

struct AttentionCase {
  CacheShape cache;
  int group = 1, window = 0;
  float softcap = 0;
  bool sinks = false;
  std::vector<int> sequences;              // positions in the cache
  std::vector<DeviceStep::Row> rows;       // of the step
};

inline void PrintTo(const AttentionCase& c, std::ostream* os) {
  *os << (c.cache.f32 ? "f32" : "bf16") << " dims " << c.cache.qk_dim << "," << c.cache.v_dim << " heads " << c.cache.kv_heads
      << "x" << c.group << " page " << c.cache.page_tokens << " window " << c.window << " rows " << c.rows.size();
}

// Value and bound of out[0..v_dim) of one query. Scores err by qk_dim roundings of the sum of magnitudes and a few of the
// score; a weight's relative error is that, twice (its own and in the sum); sums of up to 256 positions round once per
// position in a stream, per stream and per fold.
struct ExactAttention {
  std::vector<double> value, bound;
};
inline ExactAttention exact_attention(const Cache& cache, const AttentionCase& c, int sequence, int position, int kv_head,
                                      const float* q, float scale, const float* sink) {
  constexpr double kUnit = 0x1p-24;
  const int begin = c.window > 0 ? std::max(0, position - c.window + 1) : 0, d_qk = c.cache.qk_dim, d_v = c.cache.v_dim;
  std::vector<double> score;
  double error = 0.0, highest = sink ? double(*sink) : -std::numeric_limits<double>::infinity();
  for (int j = begin; j <= position; j++) {
    double sum = 0.0, magnitude = 0.0;
    for (int d = 0; d < d_qk; d++) {
      const double product = double(q[d]) * cache.get(cache.key_at(sequence, kv_head, j, d));
      sum += product, magnitude += std::fabs(product);
    }
    double s = sum * scale;
    error = std::max(error, (d_qk * magnitude * std::fabs(scale) + 4 * std::fabs(s)) * kUnit);
    if (c.softcap > 0) {
      s = c.softcap * std::tanh(s / c.softcap);
      error += 16 * kUnit * c.softcap;  // as ScalesAndCapsAsTheCpu
    }
    score.push_back(s);
    highest = std::max(highest, s);
  }
  double total = sink ? std::exp(double(*sink) - highest) : 0.0;
  for (double& s : score) s = std::exp(s - highest), total += s;
  ExactAttention result;
  const double roundings = 256.0 + 32.0 + 4.0 * (position / 256 + 2);
  for (int d = 0; d < d_v; d++) {
    double value = 0.0, magnitude = 0.0;
    for (int j = begin; j <= position; j++) {
      const double v = cache.get(cache.value_at(sequence, kv_head, j, d)), p = score[size_t(j - begin)] / total;
      value += p * v, magnitude += p * std::fabs(v);
    }
    result.value.push_back(value);
    result.bound.push_back(2.0 * magnitude * (2.0 * error + (roundings + 8.0) * kUnit));
  }
  return result;
}

}  // namespace freetoken::cuda::testing
