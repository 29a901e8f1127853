// embed, norm, add, gather and read, and the buffers and weights of a device.
#include <gtest/gtest.h>

#include "ops/ops_case.h"

namespace freetoken {
namespace {

using namespace freetoken::testing;

constexpr int kRows = 11, kVocab = 75;

class OpsRows : public ::testing::TestWithParam<DeviceChoice> {
 protected:
  // The operations of these tests do not depend on the kind of activations: three times, for the threads of a device.
  template <class F>
  void for_settings(F&& body) {
    for (const DeviceChoice& setting : settings_of(GetParam())) {
      if (setting.float32) continue;
      OpsCase device(setting, spec_with(64, make_mlp(32, {}), kVocab), kRows);
      body(device, *device.ops);
    }
  }
  std::mt19937 rng{1};
};

TEST_P(OpsRows, EmbeddingIsTheDecodedRow) {
  for_settings([&](OpsCase& device, Ops& ops) {
    for (int f = 0; f < kWeightFormats; f++)
      for (int k : {1, 33, 256}) {
        const auto format = WeightFormat(f);
        if (k % traits(format).block_k) continue;
        const TestWeight table = random_matrix(format, kVocab, k, rng);
        const std::string name = "embed." + std::to_string(f) + "." + std::to_string(k);
        TinyWeights weights;
        weights.add(name, table);
        weights.fill(ops);
        const std::vector<int32_t> tokens = {0, 74, 31, 32, 33, 63, 64, 5, 5, 73, 1};
        const Tensor out = device.tensor(kRows, k);
        for (float scale : {1.0f, 11.3137085f}) {
          ASSERT_TRUE(device.step(tokens, [&](Queue& q) { ops.embed(q, ops.weight(name), scale, out); }).ok());
          const std::vector<Values> got = device.download(out);
          for (size_t r = 0; r < kRows; r++) {
            Values expected(table.values.begin() + long(tokens[r]) * k, table.values.begin() + long(tokens[r] + 1) * k);
            if (scale != 1.0f)
              for (float& v : expected) v = v * scale;
            EXPECT_TRUE(same_bits(got[r], expected)) << traits(format).name << " " << k << ", row " << r;
          }
        }
      }
  });
}

TEST_P(OpsRows, NormsAreTheRowKernels) {
  const RowKernels& scalar = row_kernels(IsaLevel::kScalar);
  for_settings([&](OpsCase& device, Ops& ops) {
    for (int cols : {1, 50, 64})
      for (int rows : {1, 2, kRows})
        for (NormKind kind : {NormKind::kRms, NormKind::kLayer})
          for (bool with : {false, true}) {
            const NormSpec spec{.kind = kind,
                                .plus_one = with && kind == NormKind::kRms,
                                .has_weight = with,
                                .has_bias = with,
                                .eps = 1e-5f};
            const std::vector<Values> inputs = random_rows(rows, cols, rng), wb = random_rows(2, cols, rng);
            const Tensor x = device.upload(inputs), w = device.vector(wb[0]), b = device.vector(wb[1]);
            const Tensor out = device.tensor(rows, cols);
            device.run(rows, [&](Queue& q) { ops.norm(q, x, spec, with ? w : Tensor{}, with ? b : Tensor{}, out); });
            const std::vector<Values> got = device.download(out);
            for (size_t r = 0; r < size_t(rows); r++) {
              Values expected(static_cast<size_t>(cols));
              if (kind == NormKind::kRms)
                scalar.rms_norm(inputs[r].data(), with ? wb[0].data() : nullptr, spec.plus_one, spec.eps, cols,
                                expected.data());
              else
                scalar.layer_norm(inputs[r].data(), with ? wb[0].data() : nullptr, with ? wb[1].data() : nullptr,
                                  spec.eps, cols, expected.data());
              if (GetParam().kind == DeviceKind::kOther)  // sums in another order
                EXPECT_LE(relative_difference(got[r], expected), 1e-6) << cols << " " << rows;
              else
                EXPECT_TRUE(same_bits(got[r], expected)) << cols << " " << rows;
            }
          }
  });
}

TEST_P(OpsRows, AddGatherAndRead) {
  for_settings([&](OpsCase& device, Ops& ops) {
    for (int rows : {1, 2, kRows}) {
      const int cols = 45;
      const std::vector<Values> xs = random_rows(rows, cols, rng), ys = random_rows(rows, cols, rng);
      const Tensor x = device.upload(xs), y = device.upload(ys);
      std::vector<Values> expected = xs;
      for (size_t r = 0; r < size_t(rows); r++)
        for (size_t c = 0; c < size_t(cols); c++) expected[r][c] = std::fmaf(ys[r][c], 0.7f, xs[r][c]);
      const std::vector<int32_t> picked = {rows - 1, 0, rows - 1};
      const Tensor to = device.tensor(3, cols);
      Values read(3 * size_t(cols));
      device.run(rows, [&](Queue& q) {
        ops.add(q, x, y, 0.7f);
        ops.gather(q, x, picked, to);
        ops.read(q, to, read);
      });
      EXPECT_EQ(device.download(x), expected);
      for (size_t i = 0; i < 3; i++)
        EXPECT_TRUE(same_bits(Values(read.begin() + long(i) * cols, read.begin() + long(i + 1) * cols),
                              expected[size_t(picked[i])]));
    }
  });
}

// A device may do an add and the norm behind it at once: what each leaves is what they leave in steps of their own.
TEST_P(OpsRows, AnAddAndWhatNormsBehindIt) {
  for_settings([&](OpsCase& device, Ops& ops) {
    const NormSpec rms{.kind = NormKind::kRms, .has_weight = true, .eps = 1e-5f}, layer{.kind = NormKind::kLayer, .has_weight = false, .eps = 1e-5f};
    for (const int rows : {1, kRows}) {
      const int cols = 50;
      const std::vector<Values> xs = random_rows(rows, cols, rng), ys = random_rows(rows, cols, rng);
      const Tensor weight = device.vector(random_rows(1, cols, rng)[0]);
      std::vector<std::vector<Values>> expected;
      for (const bool at_once : {false, true}) {
        const Tensor x = device.upload(xs), y = device.upload(ys), a = device.tensor(rows, cols), b = device.tensor(rows, cols),
                     c = device.tensor(rows, cols), part = device.tensor(1, cols);
        const std::function<void(Queue&)> calls[] = {
            [&](Queue& q) { ops.add(q, x, y, 0.7f); },
            [&](Queue& q) { ops.norm(q, x, rms, weight, {}, a); },
            [&](Queue& q) { ops.norm(q, x, layer, {}, {}, b); },  // of the same x again
            [&](Queue& q) { ops.add(q, x, y, -0.4f); },
            [&](Queue& q) { ops.norm(q, x.first_rows(1), rms, weight, {}, part); },  // of a part
            [&](Queue& q) { ops.add(q, x, y, 0.3f); },
            [&](Queue& q) { ops.norm(q, b, rms, weight, {}, c); },  // of another
            [&](Queue& q) { ops.add(q, c, y, 0.3f); },
            [&](Queue& q) { ops.norm(q, c, layer, {}, {}, y); },  // over what was added
        };
        if (at_once)
          device.run(rows, [&](Queue& q) {
            for (const auto& call : calls) call(q);
          });
        else
          for (const auto& call : calls) device.run(rows, call);
        std::vector<std::vector<Values>> left;
        for (const Tensor& t : {x, y, a, b, c, part}) left.push_back(device.download(t));
        if (at_once) {
          EXPECT_TRUE(left == expected);
        } else {
          expected = std::move(left);
        }
      }
    }
  });
}

TEST_P(OpsRows, BuffersAreZeroedAndPaddedToTiles) {
  for_settings([&](OpsCase& device, Ops& ops) {
    const Tensor t = device.tensor(3, 33);
    EXPECT_EQ(t.row_bytes, 64 * 4);
    EXPECT_EQ(t.address % 64, 0u);
    for (const Values& row : device.download(t)) EXPECT_EQ(row, Values(33, 0.0f));
    EXPECT_FALSE(ops.allocate(DType::kF32, 1 << 30, 1 << 30).ok()) << "4 EiB";
  });
}

TEST_P(OpsRows, WeightsAreFoundByNameAndKind) {
  for_settings([&](OpsCase&, Ops& ops) {
    TinyWeights weights;
    weights.add("matrix", random_matrix(WeightFormat::kQ8_0, 40, 64, rng));
    weights.add("vector", random_vector(5, 0, 1, rng));
    weights.fill(ops);
    EXPECT_EQ(ops.weight_bytes(), int64_t(packed_bytes(WeightFormat::kQ8_0, 40, 64)) + 20);
    EXPECT_TRUE(ops.weight("matrix").valid());
    EXPECT_EQ(ops.weight("matrix").n, 40);
    EXPECT_FALSE(ops.weight("vector").valid());
    EXPECT_FALSE(ops.vector("matrix").valid());
    EXPECT_EQ(ops.vector("vector").cols, 5);
    EXPECT_FALSE(ops.weight("neither").valid());
    EXPECT_EQ(ops.expert_layout("matrix"), nullptr);
    EXPECT_EQ(ops.extent_address("matrix"), 0u);

    ExtentInfo odd{"layers.0.1.experts.0", 4096, {{{"layers.0.1.experts.0.extra", false, WeightFormat::kF32, 32, 4}, 0}}};
    const auto refused = ops.open_extent(odd);
    EXPECT_EQ(refused.status().code(), StatusCode::kUnsupported);
    EXPECT_NE(refused.status().message().find("layers.0.1.experts.0.extra"), std::string::npos);
  });
}

FT_FOR_ALL_DEVICES(OpsRows);

}  // namespace
}  // namespace freetoken
