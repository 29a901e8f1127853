// Attention over a paged KV cache, one KV head at a time.
//
// Cache layout inside a page of 64 positions, per layer and KV head: keys [2 blocks][qk_dim][32 positions], values
// [64 positions][v_dim]. Lanes of the q.k kernel run over positions, so a score is one chain over ascending dimension.
//
// Numerics, the same on every ISA level and for any grouping of queries:
//   score(j) = (chain of fma over ascending d of q[d] k_j[d]) * scale, masked positions do not exist
//   per partition of 256 absolute positions: m = max, e_j = exp(score_j - m), l = sum of e on 16 lanes (lane = position
//   mod 16) and a tree, acc[d] = chain of fma over ascending j of e_j v_j[d]
//   partitions fold in ascending order: M = max(m, m_p), l = l exp(m - M) + l_p exp(m_p - M), acc likewise
//   out = acc / l
#pragma once
#include <cstdint>

#include "core/dtype.h"
#include "platform/cpu_features.h"

namespace freetoken {

constexpr int kAttentionPartition = 256;  // positions
constexpr int kKeyBlock = 32;             // positions whose keys lie together
constexpr int kMaxQueries = 16;           // (row, head) pairs of one call

// One layer and KV head of one sequence.
struct KvHead {
  const uint8_t* keys = nullptr;    // of page 0; page p starts p * page_bytes further
  const uint8_t* values = nullptr;
  int64_t page_bytes = 0;
  const int32_t* pages = nullptr;   // page ids in position order
  int page_tokens = 64;
  DType dtype = DType::kBF16;       // kBF16 or kF32
  int qk_dim = 0, v_dim = 0;        // v_dim a multiple of 16
};

struct Queries {
  int count = 0;                    // <= kMaxQueries
  const float* q[kMaxQueries];      // [qk_dim], normed and rotated
  int begin[kMaxQueries];           // visible positions [begin, end)
  int end[kMaxQueries];
  float scale = 0;
};

struct AttentionKernels {
  // Writes one position: k [qk_dim] and v [v_dim] in fp32 are rounded to the cache's dtype.
  void (*append)(const KvHead& head, int position, const float* k, const float* v);

  // One partition. m[i] = -inf where query i sees nothing of it (its l and acc are then untouched).
  // scores: scratch of count * kAttentionPartition floats. acc[i]: [v_dim].
  void (*partition)(const KvHead& head, const Queries& queries, int partition, float* scores, float* m, float* l,
                    float* const* acc);

  // Folds partition (m_p, l_p, acc_p) into (m, l, acc); start from m = -inf.
  void (*fold)(float* m, float* l, float* acc, float m_p, float l_p, const float* acc_p, int v_dim);

  // out = acc / l
  void (*finish)(float l, const float* acc, int v_dim, float* out);
};

const AttentionKernels& attention_kernels(IsaLevel level);

}  // namespace freetoken
