// linear, mlp, logits and moe of CudaOps in every format, against sums in double of the decoded weights.
//
// Inputs are exact in bf16, so that a device that rounds them to bf16 multiplies what the oracle does. What remains is fp32
// sums in some order, (k + c) 2^-24 of the sum of the sizes of the terms, and behind an activation the rounding of its
// result to bf16, 2^-9 of it.
#include <gtest/gtest.h>

#include <numeric>

#include "cuda_device.h"
#include "ops/mlp_case.h"

namespace freetoken {
namespace {

using namespace freetoken::testing;
using enum WeightFormat;

constexpr double kU = 0x1p-24, kBf16 = 0x1p-8;
const DeviceChoice kDevice{.kind = DeviceKind::kOther};

std::vector<Values> bf16_rows(int rows, int cols, std::mt19937& rng) {
  std::vector<Values> all = random_rows(rows, cols, rng);
  for (Values& row : all)
    for (float& v : row) v = bf16_to_f32(f32_to_bf16(v));
  return all;
}
std::vector<double> doubles(const Values& v) { return {v.begin(), v.end()}; }

TEST(CudaLinear, EveryFormatAndBias) {
  const int k = 256, rows = 17, sizes[] = {33, 200, 7, 64};
  const std::vector<std::vector<WeightFormat>> mixes = {
      {kF32}, {kBF16, kBF16, kBF16}, {kQ4_0, kQ8_0, kQ4_0}, {kQ4_1, kF16, kQ6_K, kBF16}, {kQ4_0, kQ4_0}};
  OpsCase device(kDevice, spec_with(k, make_mlp(32, {})), rows);
  Ops& ops = *device.ops;
  std::mt19937 rng(1);
  const std::vector<Values> inputs = bf16_rows(rows, k, rng);
  const Tensor x = device.upload(inputs);
  for (const auto& mix : mixes) {
    std::vector<LinearOutput> handles;
    std::vector<TestWeight> matrices, biases;
    for (size_t i = 0; i < mix.size(); i++) {
      matrices.push_back(random_matrix(mix[i], sizes[i], k, rng));
      biases.push_back(random_vector(sizes[i], 0, 1, rng));
      TinyWeights weights;
      const std::string name = std::to_string(&mix - &mixes[0]) + "." + std::to_string(i);
      weights.add(name, matrices[i]);
      if (i % 2 == 0) weights.add(name + "_bias", biases[i]);
      weights.fill(ops);
      handles.push_back({ops.weight(name), ops.vector(name + "_bias"), device.tensor(rows, sizes[i])});
    }
    for (const int count : {1, rows}) {
      std::vector<LinearOutput> some = handles;
      for (LinearOutput& o : some) o.out = o.out.first_rows(count);
      device.run(count, [&](Queue& q) { ops.linear(q, x.first_rows(count), some); });
      for (size_t i = 0; i < mix.size(); i++) {
        const std::vector<Values> got = device.download(some[i].out);
        for (size_t r = 0; r < size_t(count); r++) {
          std::vector<double> terms;
          const auto exact = exact_matmul(matrices[i], doubles(inputs[r]), &terms);
          for (size_t c = 0; c < exact.size(); c++) {
            const double bias = i % 2 == 0 ? biases[i].values[c] : 0;
            ASSERT_NEAR(got[r][c], exact[c] + bias, kU * (k + 8) * (terms[c] + std::fabs(bias))) << traits(mix[i]).name << ", row " << r;
          }
        }
      }
    }
  }
}

// down(silu(gate x) * up x) in double, and the size of what its terms may be off by.
struct Exact {
  std::vector<double> y, bound;
};
Exact exact_feed_forward(const FeedForward& f, const Values& x) {
  std::vector<double> g = exact_matmul(f.gate, doubles(x)), u = exact_matmul(f.up, doubles(x)), sizes;
  for (size_t i = 0; i < g.size(); i++) {
    if (f.gate_bias) g[i] += f.gate_bias->values[i], u[i] += f.up_bias->values[i];
    g[i] = g[i] / (1 + std::exp(-g[i])) * u[i];
  }
  Exact e{exact_matmul(f.down, g, &sizes), {}};
  for (size_t i = 0; i < e.y.size(); i++) {
    if (f.down_bias) e.y[i] += f.down_bias->values[i];
    e.bound.push_back(kBf16 * sizes[i] + 1e-5 * (1 + std::fabs(e.y[i])));
  }
  return e;
}

TEST(CudaMlp, EveryPairOfFormats) {
  const std::vector<MlpCase> cases = {{kBF16, kBF16, kBF16, 96, false}, {kF32, kF32, kBF16, 41, true},   {kF16, kF16, kF32, 50, true},
                                      {kF32, kF32, kF32, 64, false},    {kQ8_0, kQ8_0, kQ4_1, 352, true}, {kQ4_0, kQ4_0, kQ6_K, 512, false},
                                      {kBF16, kF32, kBF16, 41, true},   {kQ4_0, kQ4_1, kQ8_0, 160, true}, {kBF16, kBF16, kBF16, 1, true}};
  const int k = 256, rows = 11;
  for (const MlpCase& c : cases) {
    OpsCase device(kDevice, spec_with(k, make_mlp(c.inner, {})), rows);
    Ops& ops = *device.ops;
    std::mt19937 rng(2);
    const MlpOnDevice mlp(ops, c, k, rng);
    const std::vector<Values> inputs = bf16_rows(rows, k, rng);
    const Tensor x = device.upload(inputs), out = device.tensor(rows, k);
    for (const int count : {1, rows}) {
      device.run(count, [&](Queue& q) { ops.mlp(q, x.first_rows(count), mlp.args, out.first_rows(count)); });
      const std::vector<Values> got = device.download(out.first_rows(count));
      for (size_t r = 0; r < size_t(count); r++) {
        const Exact e = exact_feed_forward(mlp.plain, inputs[r]);
        for (size_t i = 0; i < e.y.size(); i++)
          ASSERT_NEAR(got[r][i], e.y[i], e.bound[i]) << traits(c.gate).name << " " << traits(c.up).name << " " << traits(c.down).name
                                                     << " inner " << c.inner << ", row " << r << " of " << count << ", column " << i;
      }
    }
  }
}

TEST(CudaLogits, ScaleAndSoftcapFollowTheBias) {
  std::mt19937 rng(3);
  const int k = 48, vocab = 77;
  OpsCase device(kDevice, spec_with(k, make_mlp(32, {}), vocab), 4);
  Ops& ops = *device.ops;
  TinyWeights weights;
  weights.add("lm_head", random_matrix(kBF16, vocab, k, rng));
  weights.add("lm_head_bias", random_vector(vocab, 0, 3, rng));
  weights.fill(ops);
  const std::vector<Values> inputs = bf16_rows(4, k, rng);
  const Tensor x = device.upload(inputs), out = device.tensor(4, vocab);
  device.run(4, [&](Queue& q) { ops.logits(q, x, ops.weight("lm_head"), ops.vector("lm_head_bias"), 0.25f, 5.0f, out); });
  const std::vector<Values> got = device.download(out);
  for (size_t r = 0; r < 4; r++) {
    const auto y = exact_matmul(weights.at("lm_head"), doubles(inputs[r]));
    for (size_t i = 0; i < vocab; i++)
      EXPECT_NEAR(got[r][i], 5 * std::tanh(0.25 * (y[i] + weights.at("lm_head_bias").values[i]) / 5), 3e-6);
  }
}

struct MoeCase {
  WeightFormat router, gate, up, down;
  int hidden, inner, experts, per_token;
  bool normalise;
  float scaling;
};
const MoeCase kMoeCases[] = {{kF32, kBF16, kBF16, kBF16, 64, 96, 8, 2, true, 1.0f},
                             {kBF16, kQ8_0, kQ8_0, kQ4_1, 256, 64, 5, 3, false, 2.5f},
                             {kF16, kQ4_0, kQ4_1, kQ6_K, 256, 256, 3, 3, true, 0.5f},
                             {kF32, kQ4_0, kQ4_0, kQ4_0, 64, 160, 40, 6, true, 1.0f}};

// Experts that are there for good, as ResidentExperts of a loaded model.
struct There : ExpertResolver {
  std::vector<uint64_t> addresses;
  std::span<const uint64_t> resident(int) const override { return addresses; }
  void post(int, std::span<const int32_t>) override { FAIL() << "asked for experts that are there"; }
  ExpertAnswer wait(int, int) override { return {}; }
  void release(int) override {}
};

TEST(CudaMoe, EqualsALoopOverTokensAndRanks) {
  constexpr int kRows = 40;  // above what is done entry by entry
  for (const MoeCase& c : kMoeCases) {
    ModelSpec spec = spec_with(c.hidden, make_moe(c.experts, c.per_token, c.inner, {}));
    MoeSpec& moe = spec.layers[0].sublayers[0].moe;
    moe.normalise = c.normalise, moe.scaling = c.scaling;
    OpsCase device(kDevice, spec, kRows, true);
    Ops& ops = *device.ops;
    const TinyWeights weights = random_weights(spec, 5, [&](const std::string& name) {
      if (name.find(".experts.") == std::string::npos) return name.find("router") != std::string::npos ? c.router : kF32;
      return name.ends_with("gate") ? c.gate : name.ends_with("up") ? c.up : c.down;
    });
    weights.fill(ops);
    There there;
    for (int e = 0; e < c.experts; e++) there.addresses.push_back(ops.extent_address("layers.0.0.experts." + std::to_string(e)));
    const ExpertSet set{7, c.experts, *ops.expert_layout("layers.0.0.experts.0"), &there};
    std::mt19937 rng(9);
    const std::vector<Values> inputs = bf16_rows(kRows, c.hidden, rng);
    const Tensor x = device.upload(inputs), out = device.tensor(kRows, c.hidden), in_parts = device.tensor(kRows, c.hidden);
    const RouteArgs route{.spec = &moe, .router = ops.weight("layers.0.0.router"), .selection_bias = {}};
    std::vector<Values> few;
    for (const int count : {3, kRows}) {
      device.run(count, [&](Queue& q) {
        ops.route(q, Lane::kMain, x.first_rows(count), route);
        ops.moe(q, Lane::kMain, x.first_rows(count), moe, set, {0, c.experts}, out.first_rows(count));
      });
      const std::vector<Values> got = device.download(out.first_rows(count));
      if (few.empty()) few = got;
      for (size_t r = 0; r < few.size(); r++) ASSERT_TRUE(same_bits(got[r], few[r])) << "row " << r << " of " << count;
      for (size_t r = 0; r < size_t(count); r++) {
        Values p = plain_matmul(weights.at("layers.0.0.router"), inputs[r], true);
        row_kernels(IsaLevel::kScalar).softmax(p.data(), int(p.size()), p.data());
        std::vector<int> order(p.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return p[size_t(a)] > p[size_t(b)]; });
        double total = 0;
        for (int rank = 0; rank < c.per_token; rank++) total += p[size_t(order[size_t(rank)])];
        std::vector<double> y(size_t(c.hidden)), bound(size_t(c.hidden));
        for (int rank = 0; rank < c.per_token; rank++) {
          const std::string prefix = "layers.0.0.experts." + std::to_string(order[size_t(rank)]) + ".";
          const Exact e = exact_feed_forward({weights.at(prefix + "gate"), weights.at(prefix + "up"), weights.at(prefix + "down")}, inputs[r]);
          const double w = p[size_t(order[size_t(rank)])] / (c.normalise ? total : 1) * c.scaling;
          for (size_t i = 0; i < y.size(); i++) y[i] += w * e.y[i], bound[i] += w * e.bound[i] + 1e-5;
        }
        for (size_t i = 0; i < y.size(); i++) ASSERT_NEAR(got[r][i], y[i], bound[i]) << "row " << r << " of " << count;
      }
    }
    // In parts over steps, with a whole layer of the other lane between them.
    device.run(kRows, [&](Queue& q) { ops.route(q, Lane::kResumable, x, route); });
    for (int begin = 0; begin < c.experts; begin += 2) {
      device.run(kRows, [&](Queue& q) {
        ops.moe(q, Lane::kResumable, x, moe, set, {begin, std::min(begin + 2, c.experts)}, in_parts);
      });
      device.run(5, [&](Queue& q) {
        ops.route(q, Lane::kMain, x.first_rows(5), route);
        ops.moe(q, Lane::kMain, x.first_rows(5), moe, set, {0, c.experts}, out.first_rows(5));
      });
    }
    device.run(kRows, [&](Queue& q) {
      ops.route(q, Lane::kMain, x, route);
      ops.moe(q, Lane::kMain, x, moe, set, {0, c.experts}, out);
    });
    const std::vector<Values> whole = device.download(out), parts = device.download(in_parts);
    for (size_t r = 0; r < kRows; r++) ASSERT_TRUE(same_bits(parts[r], whole[r])) << "row " << r << " in parts";
  }
}

}  // namespace
}  // namespace freetoken
