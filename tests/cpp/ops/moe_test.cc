// route and moe against a loop over tokens and ranks, with resolvers that answer, answer late, or fail; whole layers and layers
// in parts, in both lanes.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include "ops/ops_case.h"

namespace freetoken {
namespace {

using namespace freetoken::testing;
using enum WeightFormat;

class OpsMoe : public ::testing::TestWithParam<DeviceChoice> {};

// Answers from the Ops' own extents and records what it was asked.
class TestResolver : public ExpertResolver {
 public:
  explicit TestResolver(const Ops& ops) : ops_(ops) {}
  void post(int layer, std::span<const int32_t> experts) override {
    const std::lock_guard lock(mutex_);
    posted.assign(experts.begin(), experts.end());
    waited.clear();
    layer_ = layer;
    posts++;
  }
  ExpertAnswer wait(int layer, int expert) override {
    if (late) std::this_thread::sleep_for(std::chrono::microseconds(expert * 37 % 5 * 50));
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(layer, layer_);
    EXPECT_TRUE(std::count(posted.begin(), posted.end(), expert)) << "asked for " << expert << ", which was not posted";
    EXPECT_TRUE(waited.insert(expert).second) << "asked twice for " << expert;
    if (failing.count(expert)) return {failing_kind, 0, IoError("expert " + std::to_string(expert) + " cannot be read")};
    return {ExpertAnswer::Kind::kAddress, ops_.extent_address("layers.0.0.experts." + std::to_string(expert)), {}};
  }
  void release(int layer) override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(layer, layer_);
    releases++;
  }

  std::vector<int32_t> posted;
  std::set<int32_t> waited, failing;
  int posts = 0, releases = 0;
  bool late = false;
  ExpertAnswer::Kind failing_kind = ExpertAnswer::Kind::kFailed;

 private:
  const Ops& ops_;
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

ModelSpec spec_of(const MoeCase& c) {
  ModelSpec spec = spec_with(c.hidden, make_moe(c.experts, c.per_token, c.inner, {}));
  spec.layers[0].sublayers[0].moe.normalise = c.normalise, spec.layers[0].sublayers[0].moe.scaling = c.scaling;
  return spec;
}

struct Built : OpsCase {
  Built(const MoeCase& c, const DeviceChoice& setting, int max_rows, bool partial = false)
      : OpsCase(setting, spec_of(c), max_rows, partial), spec(spec_of(c)), float32(setting.float32) {
    weights = random_weights(spec, 5, [&](const std::string& name) {
      if (name.find(".experts.") == std::string::npos)
        return name.find("router") != std::string::npos ? c.router : kF32;
      return name.ends_with("gate") ? c.gate : name.ends_with("up") ? c.up : c.down;
    });
    weights.fill(*ops);
    set = {7, c.experts, *ops->expert_layout("layers.0.0.experts.0"), &resolver};
  }
  MoeSpec& moe() { return spec.layers[0].sublayers[0].moe; }
  void route(Queue& q, Lane lane, Tensor x) {
    ops->route(q, lane, x, {.spec = &moe(), .router = ops->weight("layers.0.0.router"), .selection_bias = {}});
  }
  void part(Queue& q, Lane lane, Tensor x, ExpertRange range, Tensor out) { ops->moe(q, lane, x, moe(), set, range, out); }
  Status layer(Tensor x, Tensor out) {
    return step(x.rows, [&](Queue& q) {
      route(q, Lane::kMain, x);
      part(q, Lane::kMain, x, {0, moe().experts}, out);
    });
  }
  // The definition: softmax over fp32 router logits, a plain sort, each expert by itself, added in rank order.
  Values plain(const Values& x, std::set<int>* used = nullptr) {
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

  ModelSpec spec;
  bool float32;
  TinyWeights weights;
  TestResolver resolver{*ops};
  ExpertSet set;
};

// Outputs of a case's rows and the experts they used. Weights and inputs are the same for every device: made once.
struct Expected {
  std::vector<Values> rows;
  std::vector<std::set<int>> used;
};
const Expected& expected_of(Built& b, const std::vector<Values>& inputs, const std::string& key) {
  static std::map<std::string, Expected> made;
  Expected& e = made[key + (b.float32 ? " fp32" : "")];
  if (e.rows.empty()) {
    e.used.resize(inputs.size());
    for (size_t r = 0; r < inputs.size(); r++) e.rows.push_back(b.plain(inputs[r], &e.used[r]));
  }
  return e;
}

TEST_P(OpsMoe, EqualsALoopOverTokensAndRanks) {
  constexpr int kRows = 13;
  for (const DeviceChoice& setting : settings_of(GetParam()))
    for (const MoeCase& c : kCases) {
      Built b(c, setting, kRows);
      std::mt19937 rng(6);
      const std::vector<Values> inputs = random_rows(kRows, c.hidden, rng);
      const Tensor x = b.upload(inputs), out = b.tensor(kRows, c.hidden);
      const auto& [expected, used] = expected_of(b, inputs, "loop " + std::to_string(&c - &kCases[0]));
      for (int rows : {1, 2, 5, kRows}) {
        b.resolver.late = rows == 5;
        ASSERT_TRUE(b.layer(x.first_rows(rows), out.first_rows(rows)).ok());
        std::set<int> all;
        for (size_t r = 0; r < size_t(rows); r++) all.insert(used[r].begin(), used[r].end());
        EXPECT_EQ(b.resolver.posted, std::vector<int32_t>(all.begin(), all.end())) << "distinct and ascending";
        EXPECT_EQ(b.resolver.waited.size(), all.size());
        EXPECT_EQ(b.resolver.posts, b.resolver.releases);
        const std::vector<Values> got = b.download(out.first_rows(rows));
        for (size_t r = 0; r < size_t(rows); r++)
          ASSERT_TRUE(same_bits(got[r], expected[r]))
              << traits(c.gate).name << ", " << setting << ", row " << r << " of " << rows;
      }
    }
}

// All rows to the same experts, and more entries than the outputs' scratch of CpuOps holds at once.
TEST_P(OpsMoe, ManyRowsTakeSeveralColumnRanges) {
  const MoeCase c{kF32, kBF16, kBF16, kQ8_0, 256, 32, 8, 6, true, 1.0f};
  constexpr int kRows = 420;
  for (const DeviceChoice& setting : settings_of(GetParam())) {
    if (setting.float32 || setting.threads == 2) continue;
    Built b(c, setting, kRows);
    std::mt19937 rng(7);
    std::vector<Values> inputs = random_rows(kRows, c.hidden, rng);
    for (size_t r = 1; r < 200; r++) inputs[r] = inputs[0];
    const Tensor x = b.upload(inputs), out = b.tensor(kRows, c.hidden);
    ASSERT_TRUE(b.layer(x, out).ok());
    const std::vector<Values> got = b.download(out);
    for (size_t r : {0, 1, 199, 200, 201, 300, 419})
      ASSERT_TRUE(same_bits(got[r], b.plain(inputs[r]))) << setting << ", row " << r;
  }
}

// Equal router rows give equal logits: the lowest ids are chosen, in order.
TEST_P(OpsMoe, TiesGoToTheLowestExpert) {
  const MoeCase c{kF32, kF32, kF32, kF32, 32, 32, 6, 2, true, 1.0f};
  for (const DeviceChoice& setting : settings_of(GetParam())) {
    Built b(c, setting, 4);
    TestWeight router = b.weights.at("layers.0.0.router");
    for (int e = 1; e < 6; e++) std::copy_n(router.source.begin(), 128, router.source.begin() + e * 128);
    TinyWeights only;
    router.packed_form.reset();
    only.add("layers.0.0.router", router);
    only.fill(*b.ops);
    std::mt19937 rng(8);
    const Tensor x = b.upload(random_rows(4, 32, rng)), out = b.tensor(4, 32);
    ASSERT_TRUE(b.layer(x, out).ok());
    EXPECT_EQ(b.resolver.posted, (std::vector<int32_t>{0, 1}));
  }
}

// A layer in parts of any size, each in a step of its own, with a whole layer of the other lane between: the same bits.
TEST_P(OpsMoe, PartsOfALayerAddUpToItInEitherLane) {
  constexpr int kRows = 7;
  for (const DeviceChoice& setting : settings_of(GetParam()))
    for (const MoeCase& c : kCases) {
      if (c.experts < 4) continue;
      std::mt19937 rng(10);
      Built b(c, setting, kRows, true);
      const std::vector<Values> inputs[] = {random_rows(kRows, c.hidden, rng), random_rows(3, c.hidden, rng)};
      const Tensor x[] = {b.upload(inputs[0]), b.upload(inputs[1])};
      const Tensor out[] = {b.tensor(kRows, c.hidden), b.tensor(3, c.hidden)};
      auto expect_rows = [&](int which, const char* what) {
        const std::string key = "parts " + std::to_string(&c - &kCases[0]) + " " + std::to_string(which);
        const std::vector<Values>& expected = expected_of(b, inputs[which], key).rows;
        const std::vector<Values> got = b.download(out[which]);
        for (size_t r = 0; r < got.size(); r++)
          ASSERT_TRUE(same_bits(got[r], expected[r])) << what << ", " << setting << ", row " << r;
      };
      for (int round = 0; round < 3; round++) {
        b.resolver.late = round == 1;
        for (int begin = 0; begin < c.experts;) {
          const int end = std::min(c.experts, begin + 1 + int(rng() % unsigned(c.experts)));
          ASSERT_TRUE(b.step(kRows, [&](Queue& q) {
            if (begin == 0) b.route(q, Lane::kResumable, x[0]);
            b.part(q, Lane::kResumable, x[0], {begin, end}, out[0]);
          }).ok());
          for (int32_t e : b.resolver.posted) EXPECT_TRUE(e >= begin && e < end) << "posted " << e;
          if (rng() % 2) {
            ASSERT_TRUE(b.layer(x[1], out[1]).ok());
            expect_rows(1, "the main lane between");
          }
          begin = end;
        }
        expect_rows(0, "the resumable lane");
        EXPECT_EQ(b.resolver.posts, b.resolver.releases);
      }
    }
}

TEST_P(OpsMoe, AFailingExpertSurfacesOnceThroughWait) {
  for (const DeviceChoice& setting : settings_of(GetParam())) {
    if (setting.float32) continue;
    const MoeCase c = kCases[3];  // every expert is used by every row
    Built b(c, setting, 5);
    std::mt19937 rng(9);
    const std::vector<Values> inputs = random_rows(5, c.hidden, rng);
    const Tensor x = b.upload(inputs), out = b.tensor(5, c.hidden);
    b.resolver.failing = {1};
    const Status first = b.layer(x, out);
    EXPECT_EQ(first.code(), StatusCode::kIoError);
    EXPECT_EQ(first.message(), "expert 1 cannot be read");
    EXPECT_TRUE(b.ops->wait(*b.queue, {}).ok()) << "said once";
    EXPECT_EQ(b.resolver.releases, 1);
    // Of several the one with the lowest id.
    b.resolver.failing = {0, 1, 2};
    EXPECT_EQ(b.layer(x, out).message(), "expert 0 cannot be read");
    b.resolver.failing = {1};
    // The first of several steps is kept.
    auto enqueue = [&] {
      b.ops->begin_step(*b.queue, {});
      return b.ops->end_step(*b.queue);
    };
    b.resolver.failing_kind = ExpertAnswer::Kind::kFailed;
    EXPECT_FALSE(b.layer(x, out).ok());
    EXPECT_TRUE(b.ops->wait(*b.queue, enqueue()).ok()) << "a step after it is its own";
    // An answer this backend has no use for is a bug, and said to be one.
    b.resolver.failing_kind = ExpertAnswer::Kind::kComputeHere;
    EXPECT_EQ(b.layer(x, out).code(), StatusCode::kInternal);
    // And it works again afterwards.
    b.resolver.failing.clear();
    ASSERT_TRUE(b.layer(x, out).ok());
    EXPECT_TRUE(same_bits(b.download(out)[4], b.plain(inputs[4])));
  }
}

FT_FOR_ALL_DEVICES(OpsMoe);

}  // namespace
}  // namespace freetoken
