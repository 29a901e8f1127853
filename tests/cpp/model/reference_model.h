// The forward pass in double precision, written from the definitions in spec/*.h: no cache, no batching, no tiles.
#pragma once
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "model/tiny_weights.h"
#include "spec/model_spec.h"

namespace freetoken::testing {

using Row = std::vector<double>;

class ReferenceModel {
 public:
  ReferenceModel(const ModelSpec& spec, const TinyWeights& weights) : spec_(spec), weights_(weights) {}

  // Logits of every position of a prompt.
  std::vector<Row> logits(const std::vector<int32_t>& tokens) const {
    std::vector<Row> hidden;
    const TestWeight& embed = weights_.at("embed");
    for (int32_t token : tokens) {
      Row& row = hidden.emplace_back();
      for (int i = 0; i < spec_.hidden; i++)
        row.push_back(double(embed.values[size_t(token) * embed.k + i]) * spec_.embed_scale);
    }
    for (size_t l = 0; l < spec_.layers.size(); l++)
      for (size_t i = 0; i < spec_.layers[l].sublayers.size(); i++)
        run(spec_.layers[l].sublayers[i], "layers." + std::to_string(l) + "." + std::to_string(i) + ".", hidden);
    std::vector<Row> out;
    for (const Row& row : hidden) {
      Row y = multiply(spec_.tied_embedding ? "embed" : "lm_head", norm(row, spec_.final_norm, "final_norm"));
      add_bias(y, spec_.lm_head_bias, "lm_head_bias");
      for (double& v : y) {
        v *= spec_.logit_scale;
        if (spec_.logit_softcap > 0) v = spec_.logit_softcap * std::tanh(v / spec_.logit_softcap);
      }
      out.push_back(std::move(y));
    }
    return out;
  }

 private:
  Row multiply(const std::string& name, const Row& x) const {
    const TestWeight& w = weights_.at(name);
    Row y(size_t(w.n), 0.0);
    for (int i = 0; i < w.n; i++)
      for (int k = 0; k < w.k; k++) y[i] += double(w.values[size_t(i) * w.k + k]) * x[k];
    return y;
  }
  void add_bias(Row& y, bool wanted, const std::string& name) const {
    if (!wanted) return;
    for (size_t i = 0; i < y.size(); i++) y[i] += weights_.at(name).values[i];
  }
  Row norm(Row x, const NormSpec& spec, const std::string& name) const {
    double mean = 0, square = 0;
    if (spec.kind == NormKind::kLayer) {
      for (double v : x) mean += v / double(x.size());
      for (double& v : x) v -= mean;
    }
    for (double v : x) square += v * v / double(x.size());
    for (size_t i = 0; i < x.size(); i++) {
      x[i] /= std::sqrt(square + double(spec.eps));
      if (spec.has_weight) x[i] *= double(weights_.at(name).values[i]) + (spec.plus_one ? 1 : 0);
    }
    add_bias(x, spec.has_bias, name + "_bias");
    return x;
  }
  // The angle is an fp32 product, as the model definition has it (ops: positions times inv_freq in fp32).
  void rotate(double* head, int position, const RopeTable& rope) const {
    const size_t half = rope.inv_freq.size();
    for (size_t i = 0; i < half; i++) {
      const double angle = double(float(position) * rope.inv_freq[i]);
      const double c = std::cos(angle) * rope.attention_factor, s = std::sin(angle) * rope.attention_factor;
      double& a = head[rope.offset + (rope.interleaved ? 2 * i : i)];
      double& b = head[rope.offset + (rope.interleaved ? 2 * i + 1 : i + half)];
      const double x = a, y = b;
      a = x * c - y * s;
      b = x * s + y * c;
    }
  }
  Row heads(Row x, int count, int dim, const NormSpec& spec, const std::string& name, int rope, int position) const {
    for (int h = 0; h < count; h++) {
      if (spec.kind != NormKind::kNone) {
        const Row normed = norm(Row(x.begin() + h * dim, x.begin() + (h + 1) * dim), spec, name);
        std::copy(normed.begin(), normed.end(), x.begin() + h * dim);
      }
      if (rope >= 0) rotate(x.data() + h * dim, position, spec_.rope_tables[size_t(rope)]);
    }
    return x;
  }
  Row feed_forward(const Row& x, const std::string& prefix, bool bias) const {
    Row g = multiply(prefix + "gate", x), u = multiply(prefix + "up", x);
    add_bias(g, bias, prefix + "gate_bias");
    add_bias(u, bias, prefix + "up_bias");
    for (size_t i = 0; i < g.size(); i++) g[i] = g[i] / (1 + std::exp(-g[i])) * u[i];
    Row y = multiply(prefix + "down", g);
    add_bias(y, bias, prefix + "down_bias");
    return y;
  }
  Row moe(const Row& x, const MoeSpec& spec, const std::string& prefix) const {
    Row p = multiply(prefix + "router", x);
    const double highest = *std::max_element(p.begin(), p.end());
    double total = 0, chosen = 0;
    for (double& v : p) total += v = std::exp(v - highest);
    for (double& v : p) v /= total;
    std::vector<int> order(p.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return p[size_t(a)] > p[size_t(b)]; });
    for (int r = 0; r < spec.experts_per_token; r++) chosen += p[size_t(order[size_t(r)])];
    Row y(size_t(spec_.hidden), 0.0);
    for (int r = 0; r < spec.experts_per_token; r++) {
      const int e = order[size_t(r)];
      const Row one = feed_forward(x, prefix + "experts." + std::to_string(e) + ".", false);
      const double weight = p[size_t(e)] / (spec.normalise ? chosen : 1) * spec.scaling;
      for (size_t i = 0; i < y.size(); i++) y[i] += weight * one[i];
    }
    return y;
  }
  void run(const SublayerSpec& s, const std::string& prefix, std::vector<Row>& hidden) const {
    std::vector<Row> keys, values;
    for (size_t t = 0; t < hidden.size(); t++) {
      const Row x = norm(hidden[t], s.pre_norm, prefix + "pre_norm");
      Row update;
      if (s.kind == SublayerKind::kMlp) {
        update = feed_forward(x, prefix, s.mlp.bias);
      } else if (s.kind == SublayerKind::kMoe) {
        update = moe(x, s.moe, prefix);
      } else {
        const AttentionSpec& a = s.attention;
        Row q = multiply(prefix + "q", x), k = multiply(prefix + "k", x), v = multiply(prefix + "v", x);
        add_bias(q, a.qkv_bias, prefix + "q_bias");
        add_bias(k, a.qkv_bias, prefix + "k_bias");
        add_bias(v, a.qkv_bias, prefix + "v_bias");
        q = heads(q, a.q_heads, a.qk_dim, a.q_norm, prefix + "q_norm", a.rope, int(t));
        keys.push_back(heads(k, a.kv_heads, a.qk_dim, a.k_norm, prefix + "k_norm", a.rope, int(t)));
        values.push_back(v);
        Row attended;
        const size_t begin = a.type == AttentionType::kWindow && int(t) >= a.window ? t + 1 - size_t(a.window) : 0;
        for (int h = 0; h < a.q_heads; h++) {
          const int kv = h / (a.q_heads / a.kv_heads);
          Row p;
          for (size_t j = begin; j <= t; j++) {
            double score = 0;
            for (int d = 0; d < a.qk_dim; d++)
              score += q[size_t(h * a.qk_dim + d)] * keys[j][size_t(kv * a.qk_dim + d)];
            p.push_back(score * a.scale);
          }
          const double highest = *std::max_element(p.begin(), p.end());
          double total = 0;
          for (double& e : p) total += e = std::exp(e - highest);
          for (int d = 0; d < a.v_dim; d++) {
            double sum = 0;
            for (size_t j = begin; j <= t; j++) sum += p[j - begin] / total * values[j][size_t(kv * a.v_dim + d)];
            attended.push_back(sum);
          }
        }
        update = multiply(prefix + "o", attended);
        add_bias(update, a.o_bias, prefix + "o_bias");
      }
      for (size_t i = 0; i < update.size(); i++) hidden[t][i] += double(s.residual_scale) * update[i];
    }
  }

  const ModelSpec& spec_;
  const TinyWeights& weights_;
};

}  // namespace freetoken::testing
