#include "kernels/attention.h"

#include "kernels/vec_math.h"

namespace freetoken {
namespace FT_ISA {
namespace {

// Queries of one register tile: 2 key vectors (scores) or 4 value vectors (values) times as many queries as registers hold.
#if defined(__AVX512F__)
constexpr int kScoreTile = 8, kValueTile = 4, kValueVectors = 4;
#elif defined(FT_ISA_scalar)
constexpr int kScoreTile = 1, kValueTile = 1, kValueVectors = 1;
#else
constexpr int kScoreTile = 2, kValueTile = 2, kValueVectors = 2;
#endif

inline F16 load_as(const float* p) { return load(p); }
inline F16 load_as(const uint16_t* p) { return load_bf16(p); }

template <class T>
inline const T* at(const uint8_t* base, const KvHead& h, int position, int64_t offset_in_page) {
  return reinterpret_cast<const T*>(base + int64_t(h.pages[position / h.page_tokens]) * h.page_bytes) + offset_in_page;
}
template <class T>
inline const T* key_block(const KvHead& h, int position) {
  return at<T>(h.keys, h, position, int64_t(position % h.page_tokens / kKeyBlock) * h.qk_dim * kKeyBlock);
}
template <class T>
inline const T* value_row(const KvHead& h, int position) {
  return at<T>(h.values, h, position, int64_t(position % h.page_tokens) * h.v_dim);
}

inline uint16_t to_bf16(float x) { return f32_to_bf16(x); }

void append(const KvHead& h, int position, const float* k, const float* v) {
  const int lane = position % kKeyBlock;
  if (h.dtype == DType::kF32) {
    float* keys = const_cast<float*>(key_block<float>(h, position)) + lane;
    for (int d = 0; d < h.qk_dim; d++) keys[d * kKeyBlock] = k[d];
    float* values = const_cast<float*>(value_row<float>(h, position));
    for (int d = 0; d < h.v_dim; d++) values[d] = v[d];
    return;
  }
  uint16_t* keys = const_cast<uint16_t*>(key_block<uint16_t>(h, position)) + lane;
  for (int d = 0; d < h.qk_dim; d++) keys[d * kKeyBlock] = to_bf16(k[d]);
  uint16_t* values = const_cast<uint16_t*>(value_row<uint16_t>(h, position));
  for (int d = 0; d < h.v_dim; d++) values[d] = to_bf16(v[d]);
}

// scores[i * stride + 0..32) of kQ queries against one block of 32 keys.
template <class T, int kQ>
inline void score_tile(const T* keys, int qk_dim, const float* const* q, float scale, float* scores, int stride) {
  F16 s[kQ][2];
  for (int i = 0; i < kQ; i++) s[i][0] = s[i][1] = set1(0.0f);
  for (int d = 0; d < qk_dim; d++) {
    const F16 k0 = load_as(keys + d * kKeyBlock), k1 = load_as(keys + d * kKeyBlock + 16);
#pragma GCC unroll 8
    for (int i = 0; i < kQ; i++) {
      const F16 b = set1(q[i][d]);
      s[i][0] = fma(b, k0, s[i][0]);
      s[i][1] = fma(b, k1, s[i][1]);
    }
  }
  for (int i = 0; i < kQ; i++) {
    store(scores + i * stride, mul(s[i][0], set1(scale)));
    store(scores + i * stride + 16, mul(s[i][1], set1(scale)));
  }
}

template <class T>
inline void score_block(const T* keys, int qk_dim, const float* const* q, int count, float scale, float* scores, int stride) {
  int i = 0;
  for (; i + kScoreTile <= count; i += kScoreTile)
    score_tile<T, kScoreTile>(keys, qk_dim, q + i, scale, scores + i * stride, stride);
#if defined(__AVX512F__)
  if (i + 4 <= count) {
    score_tile<T, 4>(keys, qk_dim, q + i, scale, scores + i * stride, stride);
    i += 4;
  }
#endif
  for (; i < count; i++) score_tile<T, 1>(keys, qk_dim, q + i, scale, scores + i * stride, stride);
}

// acc[i][16 c ..] += sum over the rows of one run of values, kQ queries and kC vectors of 16 dimensions.
template <class T, int kQ, int kC>
inline void value_tile(const T* values, int v_dim, int rows, const float* e, int stride, float* const* acc, int c) {
  F16 a[kQ][kC];
  for (int i = 0; i < kQ; i++)
    for (int j = 0; j < kC; j++) a[i][j] = load(acc[i] + 16 * (c + j));
  for (int r = 0; r < rows; r++) {
    F16 v[kC];
#pragma GCC unroll 4
    for (int j = 0; j < kC; j++) v[j] = load_as(values + int64_t(r) * v_dim + 16 * (c + j));
#pragma GCC unroll 4
    for (int i = 0; i < kQ; i++) {
      const F16 b = set1(e[i * stride + r]);
#pragma GCC unroll 4
      for (int j = 0; j < kC; j++) a[i][j] = fma(b, v[j], a[i][j]);
    }
  }
  for (int i = 0; i < kQ; i++)
    for (int j = 0; j < kC; j++) store(acc[i] + 16 * (c + j), a[i][j]);
}

template <class T, int kQ>
inline void value_rows(const T* values, int v_dim, int rows, const float* e, int stride, float* const* acc) {
  int c = 0;
  for (; c + kValueVectors <= v_dim / 16; c += kValueVectors)
    value_tile<T, kQ, kValueVectors>(values, v_dim, rows, e, stride, acc, c);
  if (kValueVectors > 1)
    for (; c < v_dim / 16; c++) value_tile<T, kQ, 1>(values, v_dim, rows, e, stride, acc, c);
}

// Exponentials of scores[lo, hi), zero elsewhere; returns their sum.
inline float exponentials(float* scores, int lo, int hi, float highest) {
  for (int j = lo & ~15; j < lo; j++) scores[j] = -__builtin_inff();
  const int padded = (hi + 15) & ~15;
  for (int j = hi; j < padded; j++) scores[j] = -__builtin_inff();
  F16 total = set1(0.0f);
  for (int j = lo & ~15; j < padded; j += 16) {
    const F16 e = exp16(sub(load(scores + j), set1(highest)));
    store(scores + j, e);
    total = add(total, e);
  }
  return sum(total);
}

template <class T>
void partition_as(const KvHead& h, const Queries& queries, int partition, float* scores, float* m, float* l,
                  float* const* acc) {
  const int first = partition * kAttentionPartition;
  int lo[kMaxQueries], hi[kMaxQueries], lowest = kAttentionPartition, highest_end = 0;
  for (int i = 0; i < queries.count; i++) {
    lo[i] = queries.begin[i] > first ? queries.begin[i] - first : 0;
    hi[i] = queries.end[i] - first < kAttentionPartition ? queries.end[i] - first : kAttentionPartition;
    if (lo[i] >= hi[i]) {
      lo[i] = hi[i] = 0;
      continue;
    }
    if (lo[i] < lowest) lowest = lo[i];
    if (hi[i] > highest_end) highest_end = hi[i];
  }
  for (int j = lowest / kKeyBlock * kKeyBlock; j < highest_end; j += kKeyBlock)
    score_block(key_block<T>(h, first + j), h.qk_dim, queries.q, queries.count, queries.scale, scores + j,
                kAttentionPartition);
  for (int i = 0; i < queries.count; i++) {
    float* s = scores + i * kAttentionPartition;
    float highest = -__builtin_inff();
    for (int j = lo[i]; j < hi[i]; j++) highest = s[j] > highest ? s[j] : highest;
    m[i] = highest;
    if (lo[i] == hi[i]) continue;
    l[i] = exponentials(s, lo[i], hi[i], highest);
    for (int d = 0; d < h.v_dim; d += 16) store(acc[i] + d, set1(0.0f));
  }
  // A run is what one page holds. Inside it, queries that see exactly the same positions share a register tile; the
  // positions a query does not see are left out, so stale bytes in a page can never reach it.
  for (int j = lowest; j < highest_end;) {
    int run_end = (first + j) / h.page_tokens * h.page_tokens + h.page_tokens - first;
    if (run_end > highest_end) run_end = highest_end;
    const T* values = value_row<T>(h, first + j);
    for (int i = 0; i < queries.count;) {
      const int begin = lo[i] > j ? lo[i] : j, end = hi[i] < run_end ? hi[i] : run_end;
      int same = 1;
      while (i + same < queries.count && same < kValueTile && lo[i + same] == lo[i] && hi[i + same] == hi[i]) same++;
      // Whole pages are shared by every query that sees the whole run, whatever its ends.
      if (begin == j && end == run_end)
        while (i + same < queries.count && same < kValueTile && lo[i + same] <= j && hi[i + same] >= run_end) same++;
      if (begin < end) {
        const T* v = values + int64_t(begin - j) * h.v_dim;
        const float* e = scores + i * kAttentionPartition + begin;
        if (same == kValueTile)
          value_rows<T, kValueTile>(v, h.v_dim, end - begin, e, kAttentionPartition, acc + i);
        else
          for (int one = 0; one < same; one++)
            value_rows<T, 1>(v, h.v_dim, end - begin, e + one * kAttentionPartition, kAttentionPartition, acc + i + one);
      }
      i += same;
    }
    j = run_end;
  }
}

void partition(const KvHead& h, const Queries& queries, int index, float* scores, float* m, float* l, float* const* acc) {
  if (h.dtype == DType::kF32) return partition_as<float>(h, queries, index, scores, m, l, acc);
  partition_as<uint16_t>(h, queries, index, scores, m, l, acc);
}

void fold(float* m, float* l, float* acc, float m_p, float l_p, const float* acc_p, int v_dim) {
  if (m_p == -__builtin_inff()) return;
  if (*m == -__builtin_inff()) {
    *m = m_p;
    *l = l_p;
    for (int d = 0; d < v_dim; d += 16) store(acc + d, load(acc_p + d));
    return;
  }
  const float highest = *m > m_p ? *m : m_p;
  const float a = exp_f32(*m - highest), b = exp_f32(m_p - highest);
  *m = highest;
  *l = __builtin_fmaf(*l, a, l_p * b);
  for (int d = 0; d < v_dim; d += 16)
    store(acc + d, fma(load(acc + d), set1(a), mul(load(acc_p + d), set1(b))));
}

void finish(float l, const float* acc, int v_dim, float* out) {
  for (int d = 0; d < v_dim; d += 16) store(out + d, div(load(acc + d), set1(l)));
}

}  // namespace

extern const AttentionKernels kAttentionKernels;
const AttentionKernels kAttentionKernels = {append, partition, fold, finish};

}  // namespace FT_ISA
}  // namespace freetoken
