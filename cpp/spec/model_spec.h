// ModelSpec: what a network is, as data. It never says which family it came from.
//
// A model is an embedding, a list of layers and heads. A layer is an ordered list of 1-6 sublayers, each reading the
// residual stream (or the tap of an earlier sublayer) and writing back to it. Python's config/<family>.py makes the JSON
// form; parse_model_spec reads it strictly: an unknown field, a missing one or an absurd number is an error naming its path.
//
// Canonical tensor names (L layer, S sublayer index within the layer, E expert); the structs name the rarer ones:
//   embed | final_norm | lm_head | lm_head_bias | layers.L.S.pre_norm | layers.L.S.post_norm
//   attention  layers.L.S.{q,k,v,o,q_bias,k_bias,v_bias,o_bias,q_norm,k_norm,sinks,gate}
//   mlp        layers.L.S.{gate,up,down,gate_bias,up_bias,down_bias}
//   moe        layers.L.S.{router,router_bias,selection_bias} layers.L.S.experts.E.{gate,up,down,...}
//              layers.L.S.shared.{gate,up,down} layers.L.S.shared_gate
//   the bias of a norm is NAME_bias; MTP heads: mtp.I.{embed_norm,hidden_norm,join,final_norm}, mtp.I.S.*
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "core/status.h"
#include "spec/sublayer_spec.h"

namespace freetoken {

// Several residual streams x_1..x_n, all equal to the embedding at first. A sublayer reads a mix of them and its output o goes
// back to each: x_i = post_i * o + (mixed x)_i. The weights are made from all streams together, after a norm without weight:
//   kSinkhorn   m = hyper_fn norm(x): pre = sigmoid(m s_0 + b) + eps, post = post_scale * sigmoid(m s_1 + b),
//               mixed = C^T x, C = softmax of the rows of (m s_2 + b) + eps, then sinkhorn_iterations of dividing by column
//               sums + eps and row sums + eps (columns first and last). hyper_fn [(2 + n) n, n hidden], hyper_base, hyper_scale [3]
//   kMagnitude  the same pre; post has + eps; mixed = x. hyper_fn [2 n, n hidden], hyper_base, hyper_scale [2]
//   kLowRank    y = hyper_norm (per stream, stored - 1); the sublayer reads the mean over the streams of
//               sigmoid(hyper_mix_up silu(hyper_mix_down y / n)) * y; post = post_scale * sigmoid(hyper_inject y / n); mixed = x
// Before the final norm the streams become one by weights of the same form as pre (hyper_head_*), or by their kMean.
enum class HyperKind { kNone, kSinkhorn, kMagnitude, kLowRank };
enum class HyperHead { kWeighted, kMean };
struct HyperSpec {
  HyperKind kind = HyperKind::kNone;
  int streams = 1;
  int sinkhorn_iterations = 0;
  float eps = 1e-6f;         // added to the mixing weights
  float norm_eps = 1e-6f;    // of the norm of the streams the weights are made from
  float post_scale = 2.0f;   // of the sigmoid that weights a sublayer's output
  int rank = 0;              // kLowRank
  HyperHead head = HyperHead::kWeighted;
};

// The model's side of TableMemoryKind::kPerLayer: layer l of token t has
// mix_scale * (table_scale * table[t, l] + norm(projection_scale * (table_projection e)[l])), e = embed_scale * embed[t].
// Weights table [vocab, layers * dim], table_projection [layers * dim, hidden], table_norm [dim].
struct TableSpec {
  int dim = 0;               // 0 = none
  int vocab = 0;
  float table_scale = 1.0f;
  float projection_scale = 1.0f;
  float mix_scale = 1.0f;
  NormSpec norm;
};

// A multi-token-prediction head: join [hidden, 2 hidden] of (embed_norm(embedding), hidden_norm(hidden)), one layer, a norm.
struct MtpSpec {
  NormSpec embed_norm;
  NormSpec hidden_norm;
  LayerSpec layer;
  NormSpec final_norm;
  bool own_embedding = false;  // mtp.I.embed
  bool own_head = false;       // mtp.I.lm_head
};

struct ModelSpec {
  int hidden = 0;
  int vocab = 0;            // rows of embed and lm_head
  int max_positions = 0;
  float embed_scale = 1.0f;
  NormSpec embed_norm;
  float logit_scale = 1.0f;  // before the softcap
  float logit_softcap = 0.0f;
  bool tied_embedding = false;
  bool lm_head_bias = false;
  NormSpec final_norm;
  HyperSpec hyper;
  TableSpec table;
  std::vector<RopeTable> rope_tables;
  std::vector<LayerSpec> layers;
  std::vector<MtpSpec> mtp;
};

Result<ModelSpec> parse_model_spec(const std::string& json);
std::string model_spec_to_json(const ModelSpec& spec);

// The fields (and the names of the choices) a spec uses beyond the defaults, as "attention.sinks" or "moe.scoring=sigmoid":
// what a forward pass compares with what it can do. Names are those of the JSON form, without indices.
std::set<std::string> used_fields(const ModelSpec& spec);

}  // namespace freetoken
