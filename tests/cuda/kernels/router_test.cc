// Routing against the CPU's scalar code bit for bit, and against doubles where the CPU has no such scoring.
#include "cuda/kernels/router.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "cpu/route_slot.h"
#include "cuda/kernels/rows_support.h"
#include "kernels/row_ops.h"

namespace freetoken::cuda {
namespace {

using testing::DeviceArray;
using testing::random_values;
using testing::Rows2d;

struct Choice {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};
Choice run(const RouterView& router, const Rows2d& logits) {
  const DeviceArray<float> in(logits.values), weights(size_t(logits.rows * router.per_token));
  const DeviceArray<int32_t> ids(size_t(logits.rows * router.per_token));
  EXPECT_EQ(int(launch_route(router, in.data(), logits.stride, logits.rows, ids.data(), weights.data(), nullptr)), 0);
  return {ids.read(), weights.read()};
}

struct Shape {
  int experts, per_token;
};
constexpr Shape kShapes[] = {{1, 1}, {4, 4}, {15, 2}, {16, 3}, {33, 8}, {128, 8}, {512, 10}, {1000, 40}};

TEST(Router, SoftmaxEqualsTheCpu) {
  std::mt19937 rng(5);
  const RowKernels& cpu = row_kernels(IsaLevel::kScalar);
  for (const Shape s : kShapes)
    for (const bool normalise : {false, true}) {
      Rows2d logits(3, s.experts);
      logits.fill(rng, 6.0f);
      for (int i = 0; i < s.experts; i++) logits.row(1)[i] = float(int(logits.row(1)[i]));  // ties
      RouterView router{.experts = s.experts, .per_token = s.per_token, .normalise = normalise};
      router.scaling = 1.7f;
      const Choice got = run(router, logits);
      for (int r = 0; r < 3; r++) {
        std::vector<float> p(size_t(s.experts)), weights(size_t(s.per_token));
        std::vector<int32_t> ids(size_t(s.per_token));
        cpu.softmax(logits.row(r), s.experts, p.data());
        choose_experts(p.data(), s.experts, s.per_token, normalise, 1.7f, ids.data(), weights.data());
        for (int k = 0; k < s.per_token; k++) {
          EXPECT_EQ(got.ids[size_t(r * s.per_token + k)], ids[size_t(k)]) << s.experts << " row " << r << " rank " << k;
          EXPECT_EQ(got.weights[size_t(r * s.per_token + k)], weights[size_t(k)]) << s.experts << " row " << r << " rank " << k;
        }
      }
    }
}

// A full sort in double over sigmoid(logit) + bias; weights without the bias.
TEST(Router, SigmoidWithSelectionBias) {
  std::mt19937 rng(6);
  for (const Shape s : kShapes) {
    Rows2d logits(2, s.experts);
    logits.fill(rng, 5.0f);
    const std::vector<float> bias = random_values(size_t(s.experts), rng, 0.5f);
    const DeviceArray<float> device_bias(bias);
    const RouterView router{.experts = s.experts, .per_token = s.per_token, .scoring = RouteScoring::kSigmoid,
                            .normalise = true, .normalise_eps = 1e-3f, .scaling = 2.5f, .selection_bias = device_bias.data()};
    const Choice got = run(router, logits);
    for (int r = 0; r < 2; r++) {
      std::vector<double> score(static_cast<size_t>(s.experts));
      for (int e = 0; e < s.experts; e++) score[size_t(e)] = 1.0 / (1.0 + std::exp(-double(logits.row(r)[e])));
      std::vector<int> order(static_cast<size_t>(s.experts));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        return score[size_t(a)] + bias[size_t(a)] > score[size_t(b)] + bias[size_t(b)];
      });
      double total = 0.0;
      for (int k = 0; k < s.per_token; k++) total += score[size_t(order[size_t(k)])];
      for (int k = 0; k < s.per_token; k++) {
        const int id = order[size_t(k)];
        // Scores differ by more than their rounding (seeded so).
        EXPECT_EQ(got.ids[size_t(r * s.per_token + k)], id) << s.experts << " row " << r << " rank " << k;
        const double weight = score[size_t(id)] / (total + double(1e-3f)) * 2.5;
        // Sum of at most 40 terms, each of a few roundings.
        EXPECT_NEAR(got.weights[size_t(r * s.per_token + k)], weight, weight * 48 * 0x1p-24);
      }
    }
  }
}

TEST(Router, BrokenRowsChooseDistinctExperts) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const float broken : {NAN, kInf, -kInf})
    for (const RouteScoring scoring : {RouteScoring::kSoftmax, RouteScoring::kSigmoid}) {
      Rows2d logits(1, 9);
      for (int e = 0; e < 9; e++) logits.row(0)[e] = e % 2 ? broken : 0.5f;
      const Choice got = run({.experts = 9, .per_token = 9, .scoring = scoring}, logits);
      std::vector<int32_t> sorted = got.ids;
      std::sort(sorted.begin(), sorted.end());
      std::vector<int32_t> all(9);
      std::iota(all.begin(), all.end(), 0);
      EXPECT_EQ(sorted, all);
    }
}

TEST(Router, ARowDoesNotDependOnItsBatch) {
  std::mt19937 rng(8);
  Rows2d logits(5, 77);
  logits.fill(rng, 4.0f);
  const RouterView router{.experts = 77, .per_token = 6, .normalise = true};
  const Choice all = run(router, logits);
  for (int r = 0; r < 5; r++) {
    Rows2d one(1, 77);
    std::copy_n(logits.row(r), 77, one.row(0));
    const Choice alone = run(router, one);
    for (size_t k = 0; k < 6; k++) {
      EXPECT_EQ(alone.ids[k], all.ids[size_t(r) * 6 + k]);
      EXPECT_EQ(alone.weights[k], all.weights[size_t(r) * 6 + k]);
    }
  }
}

TEST(Router, RefusesWhatDoesNotFit) {
  EXPECT_EQ(int(launch_route({.experts = 4, .per_token = 5}, nullptr, 4, 1, nullptr, nullptr, nullptr)), int(cudaErrorInvalidValue));
  EXPECT_EQ(int(launch_route({.experts = kMaxRoutedExperts + 1, .per_token = 5}, nullptr, 4, 1, nullptr, nullptr, nullptr)),
            int(cudaErrorInvalidValue));
  FT_EXPECT_CUDA(launch_route({.experts = 4, .per_token = 2}, nullptr, 4, 0, nullptr, nullptr, nullptr));
}

}  // namespace
}  // namespace freetoken::cuda
