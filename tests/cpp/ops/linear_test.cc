// linear, mlp and logits: to the bit what one row and one output at a time give, and near double precision.
#include <gtest/gtest.h>

#include "ops/mlp_case.h"

namespace freetoken {
namespace {

using namespace freetoken::testing;

constexpr double kU = 0x1p-24;
constexpr int kRows = 17;
using enum WeightFormat;

class OpsLinear : public ::testing::TestWithParam<DeviceChoice> {};
class OpsMlp : public ::testing::TestWithParam<DeviceChoice> {};
class OpsLogits : public ::testing::TestWithParam<DeviceChoice> {};

struct Output {
  TestWeight weight, bias;
  LinearOutput handle;
  std::vector<Values> expected;  // per row
};

TEST_P(OpsLinear, MixedFormatsAndBiasesEqualOneAtATime) {
  const std::vector<std::vector<WeightFormat>> mixes = {{kF32},
                                                        {kBF16, kBF16, kBF16},
                                                        {kQ8_0, kBF16},
                                                        {kQ4_0, kQ8_0, kQ4_0},
                                                        {kQ4_1, kF16, kQ6_K, kBF16},
                                                        {kQ6_K, kQ4_1, kF32}};
  const int k = 256, sizes[] = {33, 200, 7, 64};
  for (const DeviceChoice& setting : settings_of(GetParam())) {
    OpsCase device(setting, spec_with(k, make_mlp(32, {})), kRows);
    Ops& ops = *device.ops;
    std::mt19937 rng(1);
    const std::vector<Values> inputs = random_rows(kRows, k, rng);
    const Tensor x = device.upload(inputs);
    for (const auto& mix : mixes) {
      std::vector<Output> outputs;
      for (size_t i = 0; i < mix.size(); i++) {
        Output o{random_matrix(mix[i], sizes[i], k, rng), random_vector(sizes[i], 0, 1, rng), {}, {}};
        TinyWeights weights;
        const std::string name = std::to_string(&mix - &mixes[0]) + "." + std::to_string(i);
        weights.add(name, o.weight);
        if (i % 2 == 0) weights.add(name + "_bias", o.bias);
        weights.fill(ops);
        o.handle = {ops.weight(name), ops.vector(name + "_bias"), device.tensor(kRows, sizes[i])};
        ASSERT_TRUE(o.handle.weight.valid());
        ASSERT_EQ(o.handle.bias.valid(), i % 2 == 0);
        for (int r = 0; r < kRows; r++) {
          o.expected.push_back(plain_matmul(o.weight, inputs[size_t(r)], setting.float32));
          plain_add(o.expected.back(), i % 2 == 0 ? &o.bias : nullptr);
        }
        outputs.push_back(std::move(o));
      }
      for (int rows : {1, 2, 5, kRows}) {
        std::vector<LinearOutput> handles;
        for (const Output& o : outputs) {
          handles.push_back(o.handle);
          handles.back().out = o.handle.out.first_rows(rows);
        }
        device.run(rows, [&](Queue& q) { ops.linear(q, x.first_rows(rows), handles); });
        for (size_t i = 0; i < outputs.size(); i++) {
          const Output& o = outputs[i];
          const std::vector<Values> all = device.download(handles[i].out);
          for (int r = 0; r < rows; r++) {
            const Values& got = all[size_t(r)];
            ASSERT_TRUE(same_bits(got, o.expected[size_t(r)]))
                << traits(o.weight.format).name << ", " << setting << ", " << rows << " rows";
            if (!setting.float32 || rows != 2) continue;
            // A chain of k fmas on exactly decoded weights, then the bias.
            const Values& from = inputs[size_t(r)];
            std::vector<double> sizes_of_terms;
            const auto exact = exact_matmul(o.weight, {from.begin(), from.end()}, &sizes_of_terms);
            for (size_t c = 0; c < exact.size(); c++)
              ASSERT_NEAR(got[c], exact[c] + (i % 2 == 0 ? o.bias.values[c] : 0),
                          kU * (k * sizes_of_terms[c] + std::fabs(got[c])) * 1.01);
          }
        }
      }
    }
  }
}

TEST_P(OpsMlp, EqualsOneRowAtATime) {
  const std::vector<MlpCase> cases = {
      {kBF16, kBF16, kBF16, 96, false}, {kF32, kF32, kBF16, 41, true},     {kBF16, kBF16, kF32, 50, true},
      {kQ8_0, kQ8_0, kQ4_1, 352, true}, {kQ4_0, kQ4_0, kQ6_K, 512, false}, {kBF16, kF32, kBF16, 41, true},
      {kQ4_0, kQ4_1, kQ8_0, 160, true}, {kQ8_0, kQ6_K, kQ4_0, 288, false}, {kF32, kF16, kF32, 32, true},
      {kQ4_1, kQ4_1, kQ4_1, 32, true},  {kBF16, kBF16, kBF16, 1, true}};
  const int k = 256;
  for (const DeviceChoice& setting : settings_of(GetParam()))
    for (const MlpCase& c : cases) {
      if (kSanitized && c.inner > 200) continue;
      OpsCase device(setting, spec_with(k, make_mlp(c.inner, {})), kRows);
      Ops& ops = *device.ops;
      std::mt19937 rng(2);
      const MlpOnDevice mlp(ops, c, k, rng);
      const std::vector<Values> inputs = random_rows(kRows, k, rng);
      const Tensor x = device.upload(inputs), out = device.tensor(kRows, k);
      std::vector<Values> expected, got;
      for (const Values& row : inputs) expected.push_back(plain_feed_forward(mlp.plain, row, setting.float32));
      for (int rows : {1, 3, kRows}) {
        device.run(rows, [&](Queue& q) { ops.mlp(q, x.first_rows(rows), mlp.args, out.first_rows(rows)); });
        got = device.download(out.first_rows(rows));
        for (int r = 0; r < rows; r++)
          ASSERT_TRUE(same_bits(got[size_t(r)], expected[size_t(r)]))
              << traits(c.gate).name << " " << traits(c.up).name << " " << traits(c.down).name << " inner " << c.inner
              << ", " << setting << ", row " << r << " of " << rows;
      }
      if (!setting.float32) continue;
      const Values& from = inputs[0];
      std::vector<double> g_size, u_size, y_size, input(from.begin(), from.end());
      auto g = exact_matmul(mlp.plain.gate, input, &g_size), u = exact_matmul(mlp.plain.up, input, &u_size);
      std::vector<double> error(g.size());
      for (size_t i = 0; i < g.size(); i++) {
        if (c.bias) g[i] += mlp.plain.gate_bias->values[i], u[i] += mlp.plain.up_bias->values[i];
        const double silu = g[i] / (1 + std::exp(-g[i]));
        // |silu'| < 1.1; the two chains have k + 1 roundings each, silu and the product at most 8.
        error[i] = kU * ((k + 1) * (1.1 * g_size[i] * std::fabs(u[i]) + u_size[i] * std::fabs(silu)) +
                         8 * std::fabs(silu * u[i]) + (k + 1) * 1.1 * std::fabs(u[i]));
        g[i] = silu * u[i];
      }
      auto y = exact_matmul(mlp.plain.down, g, &y_size);
      for (int i = 0; i < k; i++) {
        double bound = kU * (c.inner + 2) * (y_size[size_t(i)] + 2);
        for (int j = 0; j < c.inner; j++)
          bound +=
              1.1 * std::fabs(double(mlp.plain.down.values[size_t(i) * size_t(c.inner) + size_t(j)])) * error[size_t(j)];
        ASSERT_NEAR(got[0][size_t(i)], y[size_t(i)] + (c.bias ? mlp.plain.down_bias->values[size_t(i)] : 0), bound);
      }
    }
}

TEST_P(OpsLogits, ScaleAndSoftcapFollowTheBias) {
  std::mt19937 rng(3);
  const int k = 48, vocab = 77;
  DeviceChoice setting = GetParam();
  setting.float32 = true, setting.threads = 2;
  OpsCase device(setting, spec_with(k, make_mlp(32, {}), vocab), 4);
  Ops& ops = *device.ops;
  TinyWeights weights;
  weights.add("lm_head", random_matrix(kBF16, vocab, k, rng));
  weights.add("lm_head_bias", random_vector(vocab, 0, 3, rng));
  weights.fill(ops);
  const std::vector<Values> inputs = random_rows(4, k, rng, 20.0f);
  const Tensor x = device.upload(inputs), out = device.tensor(4, vocab);
  device.run(4, [&](Queue& q) { ops.logits(q, x, ops.weight("lm_head"), ops.vector("lm_head_bias"), 0.25f, 5.0f, out); });
  const std::vector<Values> got = device.download(out);
  for (size_t r = 0; r < 4; r++) {
    std::vector<double> sizes;
    const auto y = exact_matmul(weights.at("lm_head"), {inputs[r].begin(), inputs[r].end()}, &sizes);
    for (size_t i = 0; i < vocab; i++) {
      const double scaled = 0.25 * (y[i] + weights.at("lm_head_bias").values[i]);
      EXPECT_NEAR(got[r][i], 5 * std::tanh(scaled / 5), kU * (k + 2) * sizes[i] + 10 * kU * 5);
    }
  }
}

FT_FOR_ALL_DEVICES(OpsLinear);
FT_FOR_ALL_DEVICES(OpsMlp);
FT_FOR_ALL_DEVICES(OpsLogits);

}  // namespace
}  // namespace freetoken
