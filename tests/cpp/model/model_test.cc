// The forward pass on every device: against double precision, and to the same bits however it is cut up.
#include "core/worse.h"
#include "model/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "model/model_runner.h"
#include "model/reference_model.h"
#include "model/support.h"
#include "model/tiny_spec.h"

namespace freetoken {
namespace {

using namespace freetoken::testing;

WeightFormat wide_formats(const std::string& name) {
  static constexpr WeightFormat kFormats[] = {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kF16};
  if (name.find(".experts.") != std::string::npos) return name.back() == 'p' ? WeightFormat::kF32 : WeightFormat::kBF16;
  if (name.find("router") != std::string::npos) return WeightFormat::kF32;
  return kFormats[std::hash<std::string>()(name) % 3];
}
WeightFormat quantised_formats(const std::string& name) {
  static constexpr WeightFormat kFormats[] = {WeightFormat::kQ8_0, WeightFormat::kQ4_0, WeightFormat::kQ4_1,
                                              WeightFormat::kBF16};
  if (name.find("router") != std::string::npos) return WeightFormat::kF32;
  if (name.find(".experts.") != std::string::npos)
    return name.back() == 'n' ? WeightFormat::kQ4_1 : WeightFormat::kQ8_0;
  return kFormats[std::hash<std::string>()(name) % 4];
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && !std::memcmp(a.data(), b.data(), a.size() * sizeof(float));
}

// Weights decode exactly and activations stay fp32, so what is left is fp32 rounding along 4-5 sublayers of sums of
// 50-100 terms: about sqrt(100) * 2^-24 of the largest logit each. Measured: below 3e-6 of it; 2e-5 is allowed.
void expect_reference(const ModelSpec& spec, const FormatOf& formats, DeviceKind device, int threads) {
  const TinyWeights weights = random_weights(spec, 17, formats);
  ModelRunner runner(spec, weights, {.device = device, .threads = threads});
  ASSERT_TRUE(runner.status.ok()) << runner.status.message();
  std::mt19937 rng(3);
  const std::vector<int32_t> tokens = random_tokens(150, spec.vocab, rng), pages = {5, 0, 9};
  const std::vector<Row> expected = ReferenceModel(spec, weights).logits(tokens);
  const auto got = runner.prompt(pages, tokens, 47);
  double largest = 0, worst = 0;
  for (size_t p = 0; p < tokens.size(); p++)
    for (int i = 0; i < spec.vocab; i++) {
      largest = std::max(largest, std::fabs(expected[p][size_t(i)]));
      worst = worse(worst, got[p][size_t(i)], expected[p][size_t(i)]);
    }
  EXPECT_GT(largest, 0.3) << "the logits say something";
  EXPECT_LT(worst, 2e-5 * largest);
}

class OnDevice : public ::testing::TestWithParam<DeviceKind> {};
INSTANTIATE_TEST_SUITE_P(Model, OnDevice, ::testing::Values(DeviceKind::kCpu, DeviceKind::kRef),
                         [](const auto& info) { return info.param == DeviceKind::kRef ? "ref" : "cpu"; });

TEST_P(OnDevice, LlamaMatchesDoublePrecision) { expect_reference(llama_spec(), wide_formats, GetParam(), 1); }
TEST_P(OnDevice, LlamaQuantisedMatchesDoublePrecision) {
  expect_reference(llama_spec(), quantised_formats, GetParam(), 1);
}
TEST_P(OnDevice, ExpertsMatchDoublePrecision) { expect_reference(moe_spec(), wide_formats, GetParam(), 2); }
TEST_P(OnDevice, QuantisedExpertsMatchDoublePrecision) {
  expect_reference(moe_spec(), quantised_formats, GetParam(), 1);
}
TEST_P(OnDevice, WindowsMatchDoublePrecision) { expect_reference(window_spec(), wide_formats, GetParam(), 1); }
TEST_P(OnDevice, OddShapesMatchDoublePrecision) { expect_reference(odd_spec(), wide_formats, GetParam(), 2); }

// Rows of several sequences in random chunks in one step, or in slices of the resumable lane with steps of the main lane
// between: the bits of each sequence alone, in small chunks, on CpuOps' scalar level.
void expect_invariant(const ModelSpec& spec, const FormatOf& formats, DeviceKind device, bool float32, DType kv) {
  const TinyWeights weights = random_weights(spec, 23, formats);
  std::mt19937 rng(9);
  const std::vector<int> lengths = {1, 70, 270, 33};
  std::vector<std::vector<int32_t>> tokens;
  for (int n : lengths) tokens.push_back(random_tokens(n, spec.vocab, rng));
  std::vector<std::vector<std::vector<float>>> alone;
  {
    ModelRunner runner(spec, weights,
                       {.isa = IsaLevel::kScalar, .float32_activations = float32, .kv_dtype = kv, .max_rows = 7});
    ASSERT_TRUE(runner.status.ok()) << runner.status.message();
    for (const auto& t : tokens) alone.push_back(runner.prompt({4, 2, 1, 0, 3}, t, 7));
  }
  for (const RunnerOptions& options :
       {RunnerOptions{.threads = 1, .max_rows = 200}, RunnerOptions{.threads = 3, .max_rows = 40}}) {
    RunnerOptions o = options;
    o.device = device, o.float32_activations = float32, o.kv_dtype = kv;
    if (device == DeviceKind::kRef) o.isa = IsaLevel::kScalar;
    ModelRunner runner(spec, weights, o);
    const std::vector<int32_t> other_pages = {int32_t(o.pages) - 1}, other = random_tokens(5, spec.vocab, rng);
    const auto other_expected = runner.step({{&other_pages, 0, other}});
    std::vector<int32_t> ids(size_t(o.pages), 0);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), rng);
    std::vector<std::vector<int32_t>> pages;
    for (size_t s = 0; s < tokens.size(); s++)
      pages.emplace_back(ids.begin() + long(5 * s), ids.begin() + long(5 * s + 5));
    std::vector<size_t> done(tokens.size(), 0);
    while (true) {
      std::vector<ModelRunner::Chunk> chunks;
      std::vector<size_t> order(tokens.size()), members;
      std::iota(order.begin(), order.end(), 0u);
      std::shuffle(order.begin(), order.end(), rng);
      int room = o.max_rows;
      for (size_t s : order) {
        const int left = int(tokens[s].size() - done[s]);
        if (!left || !room || (rng() % 4 == 0 && chunks.size())) continue;
        const int count = std::min({left, room, rng() % 4 ? 1 + int(rng() % 80) : 1});
        const auto first = tokens[s].begin() + long(done[s]);
        chunks.push_back({&pages[s], int(done[s]), {first, first + count}});
        members.push_back(s);
        room -= count;
      }
      if (chunks.empty()) break;
      std::vector<int> cuts;
      for (int u = 1; u < runner.model().units(); u++)
        if (rng() % 4 == 0) cuts.push_back(u);
      const auto rows = rng() % 2 ? runner.step(chunks) : runner.sliced(chunks, cuts, [&] {
        if (rng() % 3) return;
        const auto again = runner.step({{&other_pages, 0, other}});
        for (size_t r = 0; r < again.size(); r++) ASSERT_TRUE(same_bits(again[r], other_expected[r])) << "the main lane";
      });
      size_t r = 0;
      for (size_t c = 0; c < chunks.size(); c++)
        for (size_t i = 0; i < chunks[c].tokens.size(); i++, r++)
          ASSERT_TRUE(same_bits(rows[r], alone[members[c]][done[members[c]] + i]))
              << o.threads << " threads, sequence " << members[c] << ", position " << done[members[c]] + i;
      for (size_t c = 0; c < chunks.size(); c++) done[members[c]] += chunks[c].tokens.size();
    }
    for (size_t s = 0; s < tokens.size(); s++) ASSERT_EQ(done[s], tokens[s].size());
  }
}

TEST_P(OnDevice, BitsDoNotDependOnBatchChunksSlicesThreadsOrLevel) {
  expect_invariant(llama_spec(), quantised_formats, GetParam(), false, DType::kBF16);
  expect_invariant(moe_spec(), quantised_formats, GetParam(), false, DType::kBF16);
  expect_invariant(moe_spec(), wide_formats, GetParam(), true, DType::kF32);
  expect_invariant(window_spec(), quantised_formats, GetParam(), false, DType::kF32);
  expect_invariant(odd_spec(), wide_formats, GetParam(), false, DType::kBF16);
}

// Pages copied, and pages spilled and brought back elsewhere, hold what they held.
TEST_P(OnDevice, CopiedAndSpilledPagesGiveTheSameBits) {
  const ModelSpec spec = moe_spec();
  const TinyWeights weights = random_weights(spec, 31, quantised_formats);
  std::mt19937 rng(5);
  const std::vector<int32_t> tokens = random_tokens(150, spec.vocab, rng), pages = {3, 0, 7};
  ModelRunner runner(spec, weights, {.device = GetParam(), .kv_dtype = DType::kBF16, .max_rows = 150, .pages = 16});
  const auto expected = runner.prompt(pages, tokens, 150);
  const std::vector<KvGroup>& groups = runner.model().kv_layout().groups;
  std::vector<PageCopy> copies;
  for (int g = 0; g < int(groups.size()); g++) copies.push_back({g, 3, 9}), copies.push_back({g, 0, 5}), copies.push_back({g, 7, 1});
  runner.ops().copy_pages(runner.queue(), copies);
  const std::vector<int32_t> copied = {9, 5, 1}, restored = {12, 13, 14};
  auto expect_last = [&](const std::vector<int32_t>& list, const char* what) {
    const auto got = runner.step({{&list, 140, {tokens.begin() + 140, tokens.end()}}});
    for (size_t i = 0; i < got.size(); i++) ASSERT_TRUE(same_bits(got[i], expected[140 + i])) << what << ", position " << 140 + i;
  };
  expect_last(copied, "copied");
  for (int g = 0; g < int(groups.size()); g++)
    for (size_t i = 0; i < pages.size(); i++) {
      std::vector<uint8_t> bytes(size_t(groups[size_t(g)].page_bytes()));
      ASSERT_TRUE(runner.ops().wait(runner.queue(), runner.ops().read_page(runner.queue(), g, pages[i], bytes)).ok());
      runner.ops().write_page(runner.queue(), g, restored[i], bytes);
    }
  expect_last(restored, "spilled and restored");
  expect_last(pages, "the original");
}

// Tokens drawn by one step and fed to the next without the host in between: what feeding them from the host gives.
TEST_P(OnDevice, SampledRowsFollowEachOtherOnTheDevice) {
  const ModelSpec spec = moe_spec();
  const TinyWeights weights = random_weights(spec, 37, quantised_formats);
  std::mt19937 rng(6);
  const std::vector<int32_t> pages[] = {{2}, {5}};
  const std::vector<int32_t> prompts[] = {random_tokens(9, spec.vocab, rng), random_tokens(4, spec.vocab, rng)};
  const SamplingParams params{.temperature = 0.8f, .top_k = 50};
  constexpr int kSteps = 20;
  auto run = [&](DeviceKind device, bool chained) {
    ModelRunner runner(spec, weights, {.device = device, .float32_activations = false, .kv_dtype = DType::kBF16});
    Ops& ops = runner.ops();
    for (int s = 0; s < 2; s++) ops.open_sampler(runner.queue(), s, {.params = &params, .seed = 7u + unsigned(s)});
    // All steps of a chain are enqueued before the first is waited for.
    std::vector<std::vector<SampleResult>> results(kSteps, std::vector<SampleResult>(2));
    std::vector<Ticket> tickets;
    for (int step = 0; step < kSteps; step++) {
      std::vector<ModelRunner::Chunk> chunks;
      std::vector<int32_t> last;
      int rows = 0;
      for (int s = 0; s < 2; s++) {
        const int position = step ? int(prompts[s].size()) + step - 1 : 0;
        std::vector<int32_t> tokens = prompts[s];
        if (step) tokens = {chained ? ~s : results[size_t(step) - 1][size_t(s)].token};
        rows += int(tokens.size());
        last.push_back(rows - 1);
        chunks.push_back({&pages[s], position, tokens});
      }
      runner.begin(chunks);
      runner.model().forward(runner.queue(), Lane::kMain, rows, 0, runner.model().units());
      const Tensor logits = runner.model().logits(runner.queue(), Lane::kMain, last);
      std::vector<SampleRow> samples;
      for (int s = 0; s < 2; s++) samples.push_back({.logits_row = s, .slot = s, .position = int(prompts[s].size()) + step});
      ops.sample(runner.queue(), logits, samples, results[size_t(step)]);
      tickets.push_back(ops.end_step(runner.queue()));
      if (!chained) {
        EXPECT_TRUE(ops.wait(runner.queue(), tickets.back()).ok());
      }
    }
    if (chained) {
      EXPECT_TRUE(ops.wait(runner.queue(), tickets.back()).ok());
    }
    std::vector<int32_t> drawn;
    for (const auto& step : results)
      for (const SampleResult& r : step) drawn.push_back(r.token);
    return drawn;
  };
  const std::vector<int32_t> host = run(GetParam(), false);
  EXPECT_EQ(run(GetParam(), true), host);
  EXPECT_EQ(run(DeviceKind::kCpu, false), host) << "every device draws the same";
  EXPECT_GT(std::set<int32_t>(host.begin(), host.end()).size(), 10u) << "the draws differ";
}

// One long sequence alone is split into partitions that several workers take; with others around it is not. Same bits.
TEST_P(OnDevice, SpreadAttentionPartitionsFoldToTheSameBits) {
  const ModelSpec spec = moe_spec();
  const TinyWeights weights = random_weights(spec, 29, quantised_formats);
  std::mt19937 rng(4);
  const std::vector<int32_t> tokens = random_tokens(780, spec.vocab, rng);
  std::vector<std::vector<int32_t>> pages;
  for (int s = 0; s < 14; s++)
    for (pages.emplace_back(); pages.back().size() < 13;)
      pages.back().push_back(int32_t(13 * s + 12 - int(pages.back().size())));
  std::vector<std::vector<float>> last;
  for (int threads : GetParam() == DeviceKind::kRef ? std::vector{1} : std::vector{1, 2, 3}) {
    ModelRunner runner(spec, weights,
                       {.device = GetParam(), .threads = threads, .kv_dtype = DType::kBF16, .max_rows = 130, .pages = 14 * 13});
    runner.prompt(pages[0], tokens, 130);
    const ModelRunner::Chunk one{&pages[0], 779, {tokens[779]}};
    last.push_back(runner.step({one})[0]);
    std::vector<ModelRunner::Chunk> many = {one};
    for (int s = 1; s < 14; s++) many.push_back({&pages[size_t(s)], 0, {int32_t(s), 5, 6}});
    last.push_back(runner.step(many)[0]);
  }
  for (const auto& row : last) EXPECT_TRUE(same_bits(row, last[0]));
}

// Forgets one weight after another: each is asked for by its name.
TEST(Model, EveryMissingWeightIsNamed) {
  for (const ModelSpec& spec : {llama_spec(), moe_spec(), odd_spec()}) {
    const TinyWeights weights = random_weights(spec, 1, wide_formats);
    for (const auto& [name, w] : weights.all()) {
      const std::string role = name.substr(name.rfind('.') + 1);
      if (role == "gate" || role == "up" || role == "down") continue;  // fill() needs all three of them
      TinyWeights without;
      for (const auto& [other, weight] : weights.all())
        if (other != name) without.add(other, weight);
      const ModelRunner runner(spec, without, {.max_rows = 4});
      ASSERT_EQ(runner.status.code(), StatusCode::kInvalidArgument) << name;
      EXPECT_NE(runner.status.message().find(name), std::string::npos) << runner.status.message();
    }
  }
}

TEST(Model, WrongShapesAreNamed) {
  std::mt19937 rng(1);
  for (const char* name : {"embed", "lm_head", "layers.0.0.q", "layers.1.0.o", "layers.0.1.gate", "layers.0.1.down",
                           "layers.1.0.pre_norm"}) {
    TinyWeights weights = random_weights(llama_spec(), 1, [](const std::string&) { return WeightFormat::kF32; });
    const TestWeight& w = weights.at(name);
    if (std::string(name) == "layers.0.1.gate") {  // interleaved: both of them
      weights.add("layers.0.1.up", random_matrix(w.format, w.n - 16, w.k, rng));
      weights.add(name, random_matrix(w.format, w.n - 16, w.k, rng));
    } else {
      weights.add(name, w.k ? random_matrix(w.format, w.n - 1, w.k, rng) : random_vector(w.n - 1, 0, 1, rng));
    }
    const ModelRunner runner(llama_spec(), weights, {.max_rows = 4});
    ASSERT_EQ(runner.status.code(), StatusCode::kInvalidArgument) << name;
    EXPECT_NE(runner.status.message().find(name), std::string::npos) << runner.status.message();
  }
}

TEST(Model, WhatHasNoOperationIsRefusedByName) {
  const NormSpec rms{.kind = NormKind::kRms};
  struct Case {
    const char* named;
    std::function<void(ModelSpec&)> change;
  };
  const std::vector<Case> cases = {
      {"softcap", [](ModelSpec& s) { s.layers[0].sublayers[0].attention.softcap = 5; }},
      {"sinks", [](ModelSpec& s) { s.layers[0].sublayers[0].attention.sinks = true; }},
      {"post_norm", [&](ModelSpec& s) { s.layers[0].sublayers[1].post_norm = rms; }},
      {"activation", [](ModelSpec& s) { s.layers[0].sublayers[1].mlp.activation.kind = Activation::kGelu; }},
      {"norm", [](ModelSpec& s) { s.layers[1].sublayers[1].pre_norm.kind = NormKind::kNone; }},
      {"multiple of 16", [](ModelSpec& s) { s.layers[0].sublayers[0].attention.v_dim = 20; }},
      {"embed_norm", [&](ModelSpec& s) { s.embed_norm = rms; }},
  };
  EXPECT_TRUE(check_model_supported(llama_spec()).ok());
  EXPECT_TRUE(check_model_supported(moe_spec()).ok());
  EXPECT_TRUE(check_model_supported(odd_spec()).ok()) << check_model_supported(odd_spec()).message();
  for (const Case& c : cases) {
    ModelSpec spec = llama_spec();
    c.change(spec);
    const Status status = check_model_supported(spec);
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << c.named;
    EXPECT_NE(status.message().find(c.named), std::string::npos) << status.message();
  }
}

// A page holds all attention layers of 64 tokens that keep the same; sublayers without a cache have no slot.
TEST(Model, KvLayoutNumbersTheAttentionLayers) {
  const ModelSpec spec = odd_spec();
  const KvLayout layout = make_kv_layout(spec, DType::kBF16);
  ASSERT_EQ(layout.groups.size(), 1u);
  ASSERT_EQ(layout.groups[0].layers.size(), 2u);
  EXPECT_EQ(layout.groups[0].page_bytes(), 2 * (20 + 32) * 64 * 2);
  EXPECT_EQ(layout.slots[0][0].layer, 0);
  EXPECT_EQ(layout.slots[1][0].layer, 1);
  EXPECT_EQ(layout.slots[0][1].group, -1);
  EXPECT_EQ(layout.slots[1][2].group, -1);

  const KvLayout mixed = make_kv_layout(moe_spec(), DType::kF32);
  ASSERT_EQ(mixed.groups.size(), 2u);
  EXPECT_EQ(mixed.groups[0].retention, Retention::kAll);
  EXPECT_EQ(mixed.groups[0].layers.size(), 2u);
  EXPECT_EQ(mixed.groups[1].retention, Retention::kWindow);
  EXPECT_EQ(mixed.groups[1].window, 40);
  EXPECT_EQ(mixed.slots[1][0].group, 1);
  EXPECT_EQ(mixed.slots[2][0].group, 0);
  EXPECT_EQ(mixed.slots[2][0].layer, 1);
}

}  // namespace
}  // namespace freetoken
