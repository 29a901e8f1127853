// Attention: what the queries see, where keys and values come from, and what is done to the scores and the output.
#pragma once
#include "spec/common_spec.h"

namespace freetoken {

// kMla: keys and values of all heads come from one low-rank latent (q_heads of them, kv_heads = 1).
// kDsa: kMla, on the tokens an indexer selects. kDsv4: one shared key-value head, a window and compressed entries.
// kBsa, kQsa: grouped-query attention on blocks that an indexer selects, per group of heads (kBsa) or for all (kQsa).
enum class AttentionType { kFull, kWindow, kChunked, kMla, kDsa, kDsv4, kBsa, kQsa };

enum class ValueSource { kOwn, kKeyProjection, kKey };  // a matrix of their own; k before its norm; k as it is cached
enum class OutputGate { kNone, kHead, kElement };       // one gate per head, or per element of the head outputs
enum class GateActivation { kSigmoid, kSoftplus, kSilu };
enum class NormSpan { kHead, kAll };                    // q and k norms over each head, or over all heads together

// Multiplies the query by a function of its position p (from 0).
enum class TemperatureKind {
  kNone,
  kFloorLog,      // 1 + alpha * ln(1 + floor((p + offset) / scale))
  kLog,           // 1 + alpha * ln(max(1, (p + 1) / scale)), and the relative bias too
  kLearnedLog,    // per head: temperature_scale * ln(p + 1) + temperature_bias
};
struct TemperatureSpec {
  TemperatureKind kind = TemperatureKind::kNone;
  float alpha = 0.0f;
  float scale = 1.0f;
  int offset = 0;
};

// Weights kv_a [rank + rope_dim, hidden], kv_a_norm, kv_b [q_heads * (qk_dim - rope_dim + v_dim), rank] (nope and v per head).
struct MlaSpec {
  int rank = 0;
  int rope_dim = 0;       // the part of the key that is shared by all heads and not compressed, 0 = none
  NormSpec norm;
  float kv_scale = 1.0f;  // multiplies the normalised latent
};

// Several tokens become one entry: softmax over the entry's tokens of (gate + bias), per element, weights the kv projection.
// Weights NAME.{kv,gate} [dim * (1 + overlap), hidden], NAME.bias [ratio, dim * (1 + overlap)], NAME.norm [dim].
struct CompressorSpec {
  int ratio = 0;
  bool overlap = false;   // an entry also sees the tokens of the one before it, through the first half of the projections
  NormSpec norm;
  int rope = -1;          // applied to an entry at the position of its first token
};

// How the score of a block follows from its tokens.
enum class IndexPool { kNone, kMax, kMean, kGated, kCompressor };

// Chooses what a query attends to. Weights index.q [heads * dim, q input], index.k [kv_heads * dim, hidden], index.q_norm,
// index.k_norm, index.weights [heads, hidden] (when weighted), index.compress.* (kCompressor),
// index.pool_gate [dim, hidden] and index.pool_bias [block, dim] (kGated).
struct IndexerSpec {
  int heads = 0;
  int kv_heads = 1;
  int dim = 0;
  int top_k = 0;               // tokens, or blocks where block > 1
  int block = 1;               // tokens per selected unit
  int local_blocks = 0;        // the last blocks are always selected
  bool tail = false;           // so are the tokens after the last complete block
  IndexPool pool = IndexPool::kNone;
  bool from_q_latent = false;  // q is made from the normalised q latent (q_a) instead of the hidden state
  bool relu = true;            // of q.k
  bool weighted = false;       // heads are summed with weights made from the hidden state, times heads^-0.5
  bool per_head = false;       // each index head selects for its own group of query heads
  int rope = -1;
  NormSpec q_input_norm;       // of the hidden state, before index.q (weight index.q_input_norm)
  NormSpec q_norm;
  NormSpec k_norm;
  TemperatureSpec temperature; // kLearnedLog: index.temperature_scale, index.temperature_bias
  CompressorSpec compressor;   // kCompressor: entries of this indexer's own keys
};

// Added to q.k before the softmax: (r_h . rel_proj[:, d]) for a key d positions back, d < extent, else 0.
// Weights rel [q_heads * dim, hidden], rel_proj [dim, extent].
struct RelativeBiasSpec {
  int dim = 0;  // 0 = none
  int extent = 0;
};

struct AttentionSpec {
  AttentionType type = AttentionType::kFull;
  int q_heads = 0;
  int kv_heads = 0;
  int qk_dim = 0;           // per head
  int v_dim = 0;            // per head
  int window = 0;           // kWindow, kDsv4: keys seen, the query's own included
  int chunk = 0;            // kChunked: a query sees the keys of its own chunk of this many positions
  int rope = -1;            // index into ModelSpec::rope_tables, -1 = no rotation
  float scale = 0.0f;       // of q.k
  float softcap = 0.0f;     // 0 = none
  bool sinks = false;
  bool qkv_bias = false;    // with a q latent or MLA: of q_a and kv_a
  bool o_bias = false;
  NormSpec q_norm;          // per head over qk_dim (or over all heads: norm_span)
  NormSpec k_norm;
  NormSpan norm_span = NormSpan::kHead;
  bool norm_after_rope = false;
  float qkv_clip = 0.0f;    // q, k and v limited to +- this, 0 = none
  int q_rank = 0;           // 0 = none: weight q; else q_a [q_rank, hidden], q_a_norm, q_b
  NormSpec q_latent_norm;
  ValueSource value_source = ValueSource::kOwn;
  NormSpec v_norm;          // per head over v_dim
  float v_scale = 1.0f;
  int kv_conv = 0;          // causal depthwise convolution of k and v before the norms, added to them; kernel size, 0 = none
  TemperatureSpec temperature;
  RelativeBiasSpec relative_bias;
  bool rotate_output = false;  // the head outputs are rotated back by the query's position
  NormSpec o_norm;          // of each head's output, before the gate
  OutputGate gate = OutputGate::kNone;  // weight gate [q_heads or q_heads * v_dim, hidden]
  GateActivation gate_activation = GateActivation::kSigmoid;
  int o_groups = 0;         // 0 = weight o; else o_a [o_groups * o_rank, q_heads * v_dim / o_groups], o_b [hidden, o_groups * o_rank]
  int o_rank = 0;
  MlaSpec mla;              // kMla, kDsa
  IndexerSpec indexer;      // kDsa, kBsa, kQsa, and kDsv4 where top_k > 0
  CompressorSpec compressor;  // kDsv4 where ratio > 0 (weights compress.*)
};

}  // namespace freetoken
