// One partition of 256 positions for up to Q queries of one sequence and KV head, by a block of 256 threads.
//
// Scores: a thread owns a position and all queries, so a key is read once, 16 bytes a thread, side by side. Values: v_dim / E
// threads own a row's granules, S = 256 / (v_dim / E) rows at a time (the streams); streams meet in shared memory.
#pragma once
#include "cuda/kernels/attention_page-inl.h"
#include "cuda/kernels/rows_math-inl.h"

namespace freetoken::cuda {

constexpr int kAttentionThreads = kAttentionPartition, kAttentionWarps = kAttentionThreads / 32;
constexpr int kMaxQueries = 8;
constexpr int kReduced = 2;  // queries whose streams meet at once

// The block's shared memory, for Q queries.
template <class T, int Q>
struct PartitionShared {
  const T* values[kAttentionPartition];            // rows of the visible positions
  float q[Q * kMaxHeadDim];                        // [query][qk_dim]
  float e[Q][kAttentionPartition];
  float streams[kReduced][kAttentionThreads * kGranule<T>];
  float warp_values[2][Q][kAttentionWarps];        // maxima, sums
  float m[Q], l[Q];                                // results
  int begin[Q], end[Q];                            // visible positions; none for an unused query
};

// Larger, NaN above all: a broken score must reach the output.
FT_DEV float max_or_nan(float a, float b) { return b > a || b != b ? b : a; }

// Fills shared.m and l, and hands every acc to put(query, element, value) for `count` queries; any thread may be the one that
// calls put. Ends with a barrier. shared.q, begin and end must be there, a barrier behind. Positions [low, high) are what any
// of the queries sees.
template <class T, int Q, class Put>
FT_DEV void attend_partition(PartitionShared<T, Q>& shared, const KvView& kv, const AttentionView& attention,
                             const int32_t* pages, int kv_head, int partition, int low, int high, int count,
                             const Put& put) {
  constexpr int E = kGranule<T>;
  const int thread = int(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int position = partition * kAttentionPartition + thread;
  const bool seen = position >= low && position < high;
  float score[Q];
#pragma unroll
  for (int i = 0; i < Q; i++) score[i] = 0.0f;
  if (seen) {
    const int place = position % kv.page_tokens;
    const T* keys = page_keys<T>(kv, pages[position / kv.page_tokens], kv_head);
    shared.values[thread] = keys + value_row<T>(kv, place);
    keys += key_element<T>(kv, place, 0);
#pragma unroll 2
    for (int g = 0; g < kv.qk_dim / E; g++, keys += int64_t(kv.page_tokens) * E) {
      float k[E];
      unpack_granule(load16(keys), k);
#pragma unroll
      for (int i = 0; i < Q; i++) {
        const float* q = shared.q + i * kv.qk_dim + g * E;
#pragma unroll
        for (int d = 0; d < E; d += 4) {
          const float4 f = load16_float(q + d);
          score[i] = fmaf(f.x, k[d], score[i]);
          score[i] = fmaf(f.y, k[d + 1], score[i]);
          score[i] = fmaf(f.z, k[d + 2], score[i]);
          score[i] = fmaf(f.w, k[d + 3], score[i]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < Q; i++) {
    score[i] = __fmul_rn(score[i], attention.scale);
    if (attention.softcap > 0.0f) score[i] = soft_cap(score[i], attention.softcap);
    if (!seen || position < shared.begin[i] || position >= shared.end[i]) score[i] = negative_infinity();
    float highest = score[i];
    for (int step = 16; step > 0; step >>= 1)
      highest = max_or_nan(highest, __shfl_xor_sync(0xffffffffu, highest, step));
    if (lane == 0) shared.warp_values[0][i][warp] = highest;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < Q; i++) {
    float m = shared.warp_values[0][i][0];
    for (int w = 1; w < kAttentionWarps; w++) m = max_or_nan(m, shared.warp_values[0][i][w]);
    if (thread == i) shared.m[i] = m;
    const bool visible = seen && position >= shared.begin[i] && position < shared.end[i];
    const float e = visible ? exp_exact(score[i] - m) : 0.0f;
    shared.e[i][thread] = e;
    const float total = warp_sum(e);
    if (lane == 0) shared.warp_values[1][i][warp] = total;
  }
  __syncthreads();
  if (thread < Q) {
    float l = shared.warp_values[1][thread][0];
    for (int w = 1; w < kAttentionWarps; w++) l += shared.warp_values[1][thread][w];
    shared.l[thread] = l;
  }

  float acc[Q][E];
#pragma unroll
  for (int i = 0; i < Q; i++)
#pragma unroll
    for (int d = 0; d < E; d++) acc[i][d] = 0.0f;
  const int granules = kv.v_dim / E, streams = kAttentionThreads / granules;
  const int stream = thread / granules, granule = thread % granules;
  const int first = low - partition * kAttentionPartition, last = high - partition * kAttentionPartition;
  if (stream < streams) {
    int j = stream;
    if (first > j) j += (first - j + streams - 1) / streams * streams;
#pragma unroll 2
    for (; j < last && j < kAttentionPartition; j += streams) {
      float v[E];
      unpack_granule(load16(shared.values[j] + granule * E), v);
#pragma unroll
      for (int i = 0; i < Q; i++) {
        const float e = shared.e[i][j];
        if (e == 0.0f) continue;  // nothing, whatever the value is: it may be one that this query must not see
#pragma unroll
        for (int d = 0; d < E; d++) acc[i][d] = fmaf(e, v[d], acc[i][d]);
      }
    }
  }
  // A stream's granule is E / 4 quads, each in a plane of its own: stores and loads without bank conflicts.
  const int plane = granules * streams * 4;
#pragma unroll
  for (int i = 0; i < Q; i += kReduced) {
    if (stream < streams)
#pragma unroll
      for (int k = 0; k < kReduced; k++)
        if (i + k < Q)
#pragma unroll
          for (int h = 0; h < E / 4; h++)
            store16(shared.streams[k] + h * plane + thread * 4,
                    float4{acc[i + k][4 * h], acc[i + k][4 * h + 1], acc[i + k][4 * h + 2], acc[i + k][4 * h + 3]});
    __syncthreads();
    for (int at = thread; at < kReduced * kv.v_dim; at += kAttentionThreads) {
      const int k = at / kv.v_dim, c = at % kv.v_dim, h = c / (4 * granules), rest = c % (4 * granules);
      if (i + k >= count) break;
      const float* from = shared.streams[k] + h * plane + rest;
      float total = from[0];
      for (int s = 1; s < streams; s++) total += from[s * 4 * granules];
      put(i + k, rest / 4 * E + 4 * h + rest % 4, total);
    }
    __syncthreads();
  }
}

// Takes partition (m_p, l_p) into (m, l) and returns what to do with acc and acc_p. Start from m = -inf.
struct FoldFactors {
  bool take = false, first = false;
  float a = 0.0f, b = 0.0f;
};
FT_DEV FoldFactors fold(float& m, float& l, float m_p, float l_p) {
  FoldFactors f;
  if (m_p == negative_infinity()) return f;
  f.take = true;
  if (m == negative_infinity()) {
    f.first = true;
    m = m_p;
    l = l_p;
    return f;
  }
  const float highest = m > m_p ? m : m_p;
  f.a = exp_exact(m - highest);
  f.b = exp_exact(m_p - highest);
  m = highest;
  l = fmaf(l, f.a, __fmul_rn(l_p, f.b));
  return f;
}
FT_DEV float fold_value(const FoldFactors& f, float acc, float acc_p) {
  if (!f.take) return acc;
  return f.first ? acc_p : fmaf(acc, f.a, __fmul_rn(acc_p, f.b));
}

}  // namespace freetoken::cuda
