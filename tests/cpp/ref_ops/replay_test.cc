// Capture and replay: steady decoding replays, and what is replayed is right.
#include <gtest/gtest.h>

#include <cstring>

#include "ref_ops/ref_case.h"

namespace freetoken {
namespace {

using namespace freetoken::testing;

TEST(RefOpsReplay, SteadyDecodingCapturesOnce) {
  RefCase c;
  const std::vector<int32_t> pages[] = {{4, 1}, {6, 2}};
  const SamplingParams params{.temperature = 0.7f};
  for (int slot = 0; slot < 2; slot++) c.ops().open_sampler(c.queue(), slot, {.params = &params, .seed = 5});
  std::vector<SampleResult> results(2);
  for (int position = 0; position < 80; position++) {
    std::vector<SampleRow> rows;
    for (int s = 0; s < 2; s++) rows.push_back({.logits_row = s, .slot = s, .position = position + 1});
    const int32_t first = position % 50, second = position % 31;
    ASSERT_TRUE(c.model_step({{&pages[0], position, {position ? ~0 : first}}, {&pages[1], position, {position ? ~1 : second}}}, [&] {
      const std::vector<int32_t> picked = {0, 1};
      c.ops().sample(c.queue(), c.model().logits(c.queue(), Lane::kMain, picked), rows, results);
    }).ok());
  }
  EXPECT_EQ(c.ref().stats().steps, 80);
  EXPECT_EQ(c.ref().stats().captures, 1);
  EXPECT_EQ(c.ref().stats().replays, 79);
}

// A mix of shapes: each is captured once, and from then on replayed with the bits that CpuOps gives.
TEST(RefOpsReplay, ReplayedStepsEqualCpuOps) {
  const ModelSpec spec = moe_spec();
  const TinyWeights weights = random_weights(spec, 41, quantised);
  const RunnerOptions options{.float32_activations = false, .kv_dtype = DType::kBF16, .max_rows = 8, .pages = 32};
  RunnerOptions ref_options = options;
  ref_options.device = DeviceKind::kRef;
  ModelRunner cpu(spec, weights, options), ref(spec, weights, ref_options);
  std::mt19937 rng(12);
  std::vector<std::vector<int32_t>> pages;
  for (int s = 0; s < 4; s++) pages.push_back({int32_t(8 * s), int32_t(8 * s + 1), int32_t(8 * s + 2), int32_t(8 * s + 3)});
  std::vector<int> done(4, 0);
  for (int step = 0; step < 150; step++) {
    std::vector<ModelRunner::Chunk> chunks;
    for (size_t s = 0; s < 4; s++) {
      const int count = int(rng() % 3);
      if (count == 0 || done[s] + count > 250) continue;
      chunks.push_back({&pages[s], done[s], random_tokens(count, spec.vocab, rng)});
      done[s] += count;
    }
    if (chunks.empty()) continue;
    const auto expected = cpu.step(chunks), got = ref.step(chunks);
    for (size_t r = 0; r < expected.size(); r++)
      ASSERT_FALSE(std::memcmp(expected[r].data(), got[r].data(), expected[r].size() * sizeof(float))) << "step " << step;
  }
  const ref::RefStats stats = dynamic_cast<ref::RefOps&>(ref.ops()).stats();
  EXPECT_LE(stats.captures, 8 * 4) << "rows and sequences are all of the shape that varies here";
  EXPECT_GT(stats.replays, 4 * stats.captures);
  EXPECT_EQ(stats.posted_experts, stats.answered_experts);
}

// Each lane has buffers of its own, and keeps them.
TEST(RefOpsReplay, ChangedAddressesAreNamed) {
  RefCase c;
  const int hidden = c.model().spec().hidden;
  auto embed = [&](Tensor out) {
    return c.bare_step(2, [&] { c.ops().embed(c.queue(), c.ops().weight("embed"), 1.0f, out); });
  };
  const Tensor main = c.tensor(2, hidden), resumable = c.tensor(2, hidden), another = c.tensor(2, hidden);
  for (int round = 0; round < 3; round++) {
    EXPECT_TRUE(embed(main).ok());
    EXPECT_TRUE(embed(resumable).ok());
  }
  EXPECT_EQ(c.ref().stats().captures, 2);
  c.expect_violation(embed(another), "addresses must stay the same");
}

}  // namespace
}  // namespace freetoken
