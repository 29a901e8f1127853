// Random weights for a ModelSpec: source bytes in any format, their decoded values, and the form a WeightSink takes.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/weight_sink.h"
#include "quant/random_weights.h"
#include "quant/t32.h"
#include "spec/model_spec.h"

namespace freetoken::testing {

struct TestWeight {
  WeightFormat format = WeightFormat::kF32;
  int n = 0, k = 0;             // k 0: a vector
  std::vector<uint8_t> source;  // n rows
  std::vector<float> values;    // decoded, n x max(k, 1)

  mutable std::shared_ptr<Memory> packed_form;  // made when first asked for

  const uint8_t* row(int i) const { return source.data() + size_t(i) * source_row_bytes(format, std::max(k, 1)); }
  const uint8_t* packed() const {
    if (!packed_form) {
      packed_form = std::make_shared<Memory>(std::move(*Memory::allocate(packed_bytes(format, n, k))));
      pack_matrix(format, n, k, source.data(), packed_form->data());
    }
    return packed_form->data();
  }
};

inline TestWeight random_matrix(WeightFormat format, int n, int k, std::mt19937& rng) {
  // Exponents of values or block scales that give weights of about 2^-4 in every format.
  static constexpr int kHigh[kWeightFormats] = {-4, -4, -4, -10, -6, -7, -13};
  TestWeight w{format, n, k, random_rows(format, n, k, rng, kHigh[int(format)] - 1, kHigh[int(format)]), {}, {}};
  w.values.resize(size_t(n) * size_t(k));
  for (int i = 0; i < n; i++) decode_row(format, k, w.row(i), w.values.data() + size_t(i) * size_t(k));
  return w;
}

inline TestWeight random_vector(int n, float mean, float deviation, std::mt19937& rng) {
  TestWeight w{WeightFormat::kF32, n, 0, std::vector<uint8_t>(size_t(n) * 4), std::vector<float>(size_t(n)), {}};
  std::normal_distribution<float> normal(mean, deviation);
  for (float& v : w.values) v = normal(rng);
  std::memcpy(w.source.data(), w.values.data(), w.source.size());
  return w;
}

// T32 of gate and up interleaved by 16 rows.
inline void pack_gate_up(const TestWeight& gate, const TestWeight& up, uint8_t* to) {
  const int n = 2 * int(align_up(size_t(gate.n), 16));
  for (int t = 0; t < tile_count(n); t++) {
    const uint8_t* rows[kTileRows] = {};
    for (int r = 0; r < 16; r++)
      if (16 * t + r < gate.n) rows[r] = gate.row(16 * t + r), rows[16 + r] = up.row(16 * t + r);
    pack_tile(gate.format, gate.k, rows, to + size_t(t) * tile_bytes(gate.format, gate.k));
  }
}

// The packed tensors of a feed-forward network: gate_up and down, or gate, up and down.
inline std::vector<PackedTensorInfo> feed_forward_parts(const std::string& prefix, const TestWeight& gate,
                                                        const TestWeight& up, const TestWeight& down) {
  std::vector<PackedTensorInfo> parts;
  if (gate.format == up.format) {
    parts.push_back({prefix + "gate_up", false, gate.format, 2 * int(align_up(size_t(gate.n), 16)), gate.k});
  } else {
    parts.push_back({prefix + "gate", false, gate.format, gate.n, gate.k});
    parts.push_back({prefix + "up", false, up.format, up.n, up.k});
  }
  parts.push_back({prefix + "down", false, down.format, down.n, down.k});
  return parts;
}

class TinyWeights {
 public:
  void add(const std::string& name, TestWeight w) { weights_[name] = std::move(w); }
  const TestWeight& at(const std::string& name) const {
    const auto it = weights_.find(name);
    if (it == weights_.end()) throw std::runtime_error("no weight " + name);
    return it->second;
  }
  bool has(const std::string& name) const { return weights_.count(name) > 0; }
  const std::map<std::string, TestWeight>& all() const { return weights_; }

  // Opens, packs and commits everything.
  void fill(WeightSink& sink) const {
    for (const auto& [name, w] : weights_) {
      const size_t dot = name.rfind('.') + 1;
      const std::string prefix = name.substr(0, dot), role = name.substr(dot);
      if (role == "gate" || role == "up" || role == "down") {
        if (role == "gate") fill_feed_forward(sink, prefix);
        continue;
      }
      open_and_pack(sink, {name, w.k == 0, w.format, w.n, w.k ? w.k : 1}, w);
    }
  }

 private:
  void pack_part(const PackedTensorInfo& part, const std::string& prefix, uint8_t* to) const {
    const std::string role = part.name.substr(prefix.size());
    if (role == "gate_up") return pack_gate_up(at(prefix + "gate"), at(prefix + "up"), to);
    const TestWeight& w = at(part.name);
    pack_matrix(w.format, w.n, w.k, w.source.data(), to);
  }
  void fill_feed_forward(WeightSink& sink, const std::string& prefix) const {
    const auto parts = feed_forward_parts(prefix, at(prefix + "gate"), at(prefix + "up"), at(prefix + "down"));
    if (prefix.find(".experts.") == std::string::npos) {
      for (const PackedTensorInfo& part : parts) {
        auto data = sink.open(part);
        ASSERT_TRUE(data.ok()) << data.status().message();
        pack_part(part, prefix, *data);
        ASSERT_TRUE(sink.commit(part).ok());
      }
      return;
    }
    ExtentInfo extent;
    extent.name = prefix.substr(0, prefix.size() - 1);
    for (const PackedTensorInfo& part : parts) {
      extent.parts.push_back({part, extent.bytes});
      extent.bytes = align_up(extent.bytes + part.bytes(), 64);
    }
    extent.bytes = align_up(extent.bytes, 4096);
    auto data = sink.open_extent(extent);
    ASSERT_TRUE(data.ok()) << data.status().message();
    for (const ExtentPart& part : extent.parts) pack_part(part.tensor, prefix, *data + part.offset);
    ASSERT_TRUE(sink.commit_extent(extent).ok());
  }
  static void open_and_pack(WeightSink& sink, const PackedTensorInfo& info, const TestWeight& w) {
    auto data = sink.open(info);
    ASSERT_TRUE(data.ok()) << data.status().message();
    if (info.vector) std::memcpy(*data, w.source.data(), w.source.size());
    else pack_matrix(w.format, w.n, w.k, w.source.data(), *data);
    ASSERT_TRUE(sink.commit(info).ok());
  }

  std::map<std::string, TestWeight> weights_;
};

using FormatOf = std::function<WeightFormat(const std::string& name)>;

// Every weight a spec of attention, mlp and moe sublayers names. Norm weights are near 1 (or 0 with plus_one).
inline TinyWeights random_weights(const ModelSpec& spec, uint32_t seed, const FormatOf& format_of) {
  TinyWeights out;
  std::mt19937 rng(seed);
  auto matrix = [&](const std::string& name, int n, int k) {
    out.add(name, random_matrix(format_of(name), n, k, rng));
  };
  auto bias = [&](bool wanted, const std::string& name, int n) {
    if (wanted) out.add(name, random_vector(n, 0.0f, 0.1f, rng));
  };
  auto norm = [&](const NormSpec& s, const std::string& name, int n) {
    if (s.kind == NormKind::kNone) return;
    if (s.has_weight) out.add(name, random_vector(n, s.plus_one ? 0.0f : 1.0f, 0.2f, rng));
    bias(s.has_bias, name + "_bias", n);
  };
  auto feed_forward = [&](const std::string& prefix, int inner) {
    matrix(prefix + "gate", inner, spec.hidden);
    matrix(prefix + "up", inner, spec.hidden);
    matrix(prefix + "down", spec.hidden, inner);
  };
  matrix("embed", spec.vocab, spec.hidden);
  if (!spec.tied_embedding) matrix("lm_head", spec.vocab, spec.hidden);
  bias(spec.lm_head_bias, "lm_head_bias", spec.vocab);
  norm(spec.final_norm, "final_norm", spec.hidden);
  for (size_t l = 0; l < spec.layers.size(); l++)
    for (size_t i = 0; i < spec.layers[l].sublayers.size(); i++) {
      const SublayerSpec& s = spec.layers[l].sublayers[i];
      const std::string p = "layers." + std::to_string(l) + "." + std::to_string(i) + ".";
      norm(s.pre_norm, p + "pre_norm", spec.hidden);
      if (s.kind == SublayerKind::kAttention) {
        const AttentionSpec& a = s.attention;
        matrix(p + "q", a.q_heads * a.qk_dim, spec.hidden);
        matrix(p + "k", a.kv_heads * a.qk_dim, spec.hidden);
        matrix(p + "v", a.kv_heads * a.v_dim, spec.hidden);
        matrix(p + "o", spec.hidden, a.q_heads * a.v_dim);
        bias(a.qkv_bias, p + "q_bias", a.q_heads * a.qk_dim);
        bias(a.qkv_bias, p + "k_bias", a.kv_heads * a.qk_dim);
        bias(a.qkv_bias, p + "v_bias", a.kv_heads * a.v_dim);
        bias(a.o_bias, p + "o_bias", spec.hidden);
        norm(a.q_norm, p + "q_norm", a.qk_dim);
        norm(a.k_norm, p + "k_norm", a.qk_dim);
      } else if (s.kind == SublayerKind::kMlp) {
        feed_forward(p, s.mlp.inner);
        bias(s.mlp.bias, p + "gate_bias", s.mlp.inner);
        bias(s.mlp.bias, p + "up_bias", s.mlp.inner);
        bias(s.mlp.bias, p + "down_bias", spec.hidden);
      } else {
        matrix(p + "router", s.moe.experts, spec.hidden);
        for (int e = 0; e < s.moe.experts; e++) feed_forward(p + "experts." + std::to_string(e) + ".", s.moe.inner);
      }
    }
  return out;
}

}  // namespace freetoken::testing
