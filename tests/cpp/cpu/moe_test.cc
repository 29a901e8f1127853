// route and moe of CpuOps against a loop over tokens and ranks, with resolvers that answer or fail.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>
#include <set>

#include "cpu/cpu_case.h"
#include "model/tiny_spec.h"

namespace freetoken {
namespace {

using namespace freetoken::testing;
using enum WeightFormat;

// Answers from the Ops' own extents and records what it was asked.
class TestResolver : public ExpertResolver {
 public:
  explicit TestResolver(const CpuOps& ops) : ops_(ops) {}
  void post(int layer, std::span<const int32_t> experts) override {
    posted.assign(experts.begin(), experts.end());
    layer_ = layer;
    posts++;
  }
  ExpertAnswer wait(int layer, int expert) override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(layer, layer_);
    EXPECT_TRUE(waited.insert(expert).second) << "asked twice for " << expert;
    if (expert == failing) return {failing_kind, 0, IoError("expert " + std::to_string(expert) + " cannot be read")};
    return {ExpertAnswer::Kind::kAddress, ops_.extent_address("layers.0.0.experts." + std::to_string(expert)), {}};
  }
  void release(int layer) override {
    EXPECT_EQ(layer, layer_);
    releases++;
  }

  std::vector<int32_t> posted;
  std::set<int32_t> waited;
  int posts = 0, releases = 0, failing = -1;
  ExpertAnswer::Kind failing_kind = ExpertAnswer::Kind::kFailed;

 private:
  const CpuOps& ops_;
  std::mutex mutex_;
  int layer_ = -1;
};

struct MoeCase {
  WeightFormat router, gate, up, down;
  int hidden, inner, experts, per_token;
  bool normalise;
  float scaling;
};
const std::vector<MoeCase> kCases = {{kF32, kBF16, kBF16, kBF16, 64, 96, 8, 2, true, 1.0f},
                                     {kBF16, kQ8_0, kQ8_0, kQ4_1, 256, 64, 5, 3, false, 2.5f},
                                     {kF32, kBF16, kF32, kBF16, 50, 41, 4, 1, false, 1.0f},
                                     {kF16, kQ4_0, kQ4_1, kQ6_K, 256, 256, 3, 3, true, 0.5f},
                                     {kF32, kQ6_K, kQ8_0, kQ8_0, 256, 160, 40, 6, true, 1.0f}};

struct Built {
  Built(const MoeCase& c, const Setting& setting, int max_rows) : ops(options_of(setting)) {
    spec = spec_with(c.hidden, make_moe(c.experts, c.per_token, c.inner, {}));
    MoeSpec& m = moe();
    m.normalise = c.normalise, m.scaling = c.scaling;
    weights = random_weights(spec, 5, [&](const std::string& name) {
      if (name.find(".experts.") == std::string::npos)
        return name.find("router") != std::string::npos ? c.router : kF32;
      return name.ends_with("gate") ? c.gate : name.ends_with("up") ? c.up : c.down;
    });
    weights.fill(ops);
    EXPECT_TRUE(ops.reserve(max_rows, max_rows, spec).ok());
    queue = ops.make_queue();
    ops.begin_step(*queue, {});
    set = {7, c.experts, *ops.expert_layout("layers.0.0.experts.0"), &resolver};
  }
  MoeSpec& moe() { return spec.layers[0].sublayers[0].moe; }
  void run(Tensor x, Tensor out) {
    ops.route(*queue, x, {.spec = &moe(), .router = ops.weight("layers.0.0.router"), .selection_bias = {}});
    ops.moe(*queue, x, moe(), set, out);
  }
  // The definition: softmax over fp32 router logits, a plain sort, each expert by itself, added in rank order.
  Values plain(const Values& x, bool float32, std::set<int>* used = nullptr) {
    Values p = plain_matmul(weights.at("layers.0.0.router"), x, true);
    row_kernels(IsaLevel::kScalar).softmax(p.data(), int(p.size()), p.data());
    std::vector<int> order(p.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return p[size_t(a)] > p[size_t(b)]; });
    order.resize(size_t(moe().experts_per_token));
    float total = 0;
    for (int e : order) total += p[size_t(e)];
    Values y(size_t(spec.hidden), 0.0f);
    for (int e : order) {
      const std::string prefix = "layers.0.0.experts." + std::to_string(e) + ".";
      const Values one = plain_feed_forward(
          {weights.at(prefix + "gate"), weights.at(prefix + "up"), weights.at(prefix + "down")}, x, float32);
      const float weight = (moe().normalise ? p[size_t(e)] / total : p[size_t(e)]) * moe().scaling;
      for (size_t i = 0; i < y.size(); i++) y[i] = std::fmaf(one[i], weight, y[i]);
      if (used) used->insert(e);
    }
    return y;
  }

  CpuOps ops;
  ModelSpec spec;
  TinyWeights weights;
  TestResolver resolver{ops};
  std::unique_ptr<Queue> queue;
  ExpertSet set;
};

TEST(CpuMoe, EqualsALoopOverTokensAndRanks) {
  constexpr int kRows = 13;
  for (const Setting& setting : settings())
    for (const MoeCase& c : kCases) {
      Built b(c, setting, kRows);
      std::mt19937 rng(6);
      const Tensor x = random_tensor(b.ops, kRows, c.hidden, rng), out = make_tensor(b.ops, kRows, c.hidden);
      std::vector<Values> expected;
      std::vector<std::set<int>> used(kRows);
      for (int r = 0; r < kRows; r++) expected.push_back(b.plain(values_of(x, r), setting.float32, &used[size_t(r)]));
      for (int rows : {1, 2, 5, kRows}) {
        b.resolver.waited.clear();
        b.run(x.first_rows(rows), out.first_rows(rows));
        EXPECT_TRUE(b.ops.wait(*b.queue, {}).ok());
        for (int r = 0; r < rows; r++)
          ASSERT_TRUE(same_bits(values_of(out, r), expected[size_t(r)]))
              << traits(c.gate).name << ", " << setting.threads << " threads, level " << isa_name(setting.isa)
              << ", row " << r << " of " << rows;
        std::set<int> all;
        for (int r = 0; r < rows; r++) all.insert(used[size_t(r)].begin(), used[size_t(r)].end());
        EXPECT_EQ(b.resolver.posted, std::vector<int32_t>(all.begin(), all.end())) << "distinct and ascending";
        EXPECT_EQ(b.resolver.waited.size(), all.size());
        EXPECT_EQ(b.resolver.posts, b.resolver.releases);
      }
    }
}

// All rows to the same experts, and more entries than the outputs' scratch holds at once.
TEST(CpuMoe, ManyRowsTakeSeveralColumnRanges) {
  const MoeCase c{kF32, kBF16, kBF16, kQ8_0, 256, 32, 8, 6, true, 1.0f};
  constexpr int kRows = 420;
  for (int threads : {1, 3}) {
    const Setting setting{threads, supported_isa_levels().back(), false};
    Built b(c, setting, kRows);
    std::mt19937 rng(7);
    const Tensor x = random_tensor(b.ops, kRows, c.hidden, rng), out = make_tensor(b.ops, kRows, c.hidden);
    for (int r = 1; r < 200; r++) std::memcpy(row_of(x, r), row_of(x, 0), size_t(c.hidden) * 4);
    b.run(x, out);
    for (int r : {0, 1, 199, 200, 201, 300, 419})
      ASSERT_TRUE(same_bits(values_of(out, r), b.plain(values_of(x, r), false))) << threads << " threads, row " << r;
  }
}

// Equal router rows give equal logits: the lowest ids are chosen, in order.
TEST(CpuMoe, TiesGoToTheLowestExpert) {
  const MoeCase c{kF32, kF32, kF32, kF32, 32, 32, 6, 2, true, 1.0f};
  for (int threads : {1, 3}) {
    Built b(c, {threads, supported_isa_levels().back(), true}, 4);
    TestWeight router = b.weights.at("layers.0.0.router");
    for (int e = 1; e < 6; e++) std::copy_n(router.source.begin(), 128, router.source.begin() + e * 128);
    TinyWeights only;
    only.add("layers.0.0.router", router);
    only.fill(b.ops);
    std::mt19937 rng(8);
    const Tensor x = random_tensor(b.ops, 4, 32, rng), out = make_tensor(b.ops, 4, 32);
    b.run(x, out);
    EXPECT_EQ(b.resolver.posted, (std::vector<int32_t>{0, 1}));
  }
}

TEST(CpuMoe, AFailingExpertSurfacesOnceThroughWait) {
  for (int threads : {1, 3}) {
    const MoeCase c = kCases[3];  // every expert is used by every row
    Built b(c, {threads, supported_isa_levels().back(), false}, 5);
    std::mt19937 rng(9);
    const Tensor x = random_tensor(b.ops, 5, c.hidden, rng), out = make_tensor(b.ops, 5, c.hidden);
    b.resolver.failing = 1;
    b.run(x, out);
    const Status first = b.ops.wait(*b.queue, {});
    EXPECT_EQ(first.code(), StatusCode::kIoError);
    EXPECT_EQ(first.message(), "expert 1 cannot be read");
    EXPECT_TRUE(b.ops.wait(*b.queue, {}).ok()) << "said once";
    EXPECT_EQ(b.resolver.releases, 1);
    // The first of several is kept.
    b.resolver.waited.clear();
    b.run(x, out);
    b.resolver.waited.clear();
    b.resolver.failing = 2;
    b.run(x, out);
    EXPECT_EQ(b.ops.wait(*b.queue, {}).message(), "expert 1 cannot be read");
    // An answer this backend has no use for is a bug, and said to be one.
    b.resolver.waited.clear();
    b.resolver.failing_kind = ExpertAnswer::Kind::kComputeHere;
    b.run(x, out);
    EXPECT_EQ(b.ops.wait(*b.queue, {}).code(), StatusCode::kInternal);
    // And it works again afterwards.
    b.resolver.waited.clear();
    b.resolver.failing = -1;
    b.run(x, out);
    EXPECT_TRUE(b.ops.wait(*b.queue, {}).ok());
    EXPECT_TRUE(same_bits(values_of(out, 4), b.plain(values_of(x, 4), false)));
  }
}

}  // namespace
}  // namespace freetoken
