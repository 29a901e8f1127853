// sample() and the sampler slots: what the Sampler (with oracles of its own in tests/cpp/sample) draws from the same rows; rows
// whose token is one that was sampled.
#include <gtest/gtest.h>

#include <algorithm>

#include "ops/ops_case.h"
#include "sample/sampler.h"

namespace freetoken {
namespace {

using namespace freetoken::testing;

constexpr int kVocab = 75;

class OpsSampling : public ::testing::TestWithParam<DeviceChoice> {
 protected:
  template <class F>
  void for_settings(F&& body) {
    for (const DeviceChoice& setting : settings_of(GetParam())) {
      if (setting.float32) continue;
      OpsCase device(setting, spec_with(16, make_mlp(32, {}), kVocab), 8);
      body(device, *device.ops);
    }
  }
  std::mt19937 rng{4};
};

int32_t highest(const Values& row) { return int32_t(std::max_element(row.begin(), row.end()) - row.begin()); }

// ~i stands for what row i of the last step that sampled drew, over all its calls; the host need not know it.
TEST_P(OpsSampling, SampledTokensCanBeEmbeddedWithoutTheHost) {
  for_settings([&](OpsCase& device, Ops& ops) {
    const TestWeight table = random_matrix(WeightFormat::kBF16, kVocab, 16, rng);
    TinyWeights weights;
    weights.add("embed", table);
    weights.fill(ops);
    const std::vector<Values> values = random_rows(4, kVocab, rng);
    const Tensor logits = device.upload(values), out = device.tensor(4, 16);
    SamplingParams greedy{.temperature = 0.0f};
    ops.open_sampler(*device.queue, 3, {.params = &greedy});
    std::vector<SampleRow> first(3), second(1);
    std::vector<SampleResult> first_results(3), second_results(1);
    for (int i = 0; i < 3; i++) first[size_t(i)] = {.logits_row = 3 - i, .slot = 3, .target = i == 2 ? 42 : -1};
    second[0] = {.logits_row = 0, .slot = 3};
    const int32_t drawn[] = {highest(values[3]), highest(values[2]), 42, highest(values[0])};
    auto expect_embedded = [&](const std::vector<int32_t>& tokens, const std::vector<int32_t>& expected) {
      const Tensor to = out.first_rows(int(tokens.size()));
      ASSERT_TRUE(device.step(tokens, [&](Queue& q) { ops.embed(q, ops.weight("embed"), 1.0f, to); }).ok());
      const std::vector<Values> got = device.download(to);
      for (size_t r = 0; r < got.size(); r++)
        EXPECT_TRUE(same_bits(got[r], Values(table.values.begin() + expected[r] * 16, table.values.begin() + expected[r] * 16 + 16)))
            << "row " << r;
    };
    device.run(4, [&](Queue& q) {
      ops.sample(q, logits, first, first_results);
      ops.sample(q, logits, second, second_results);
    });
    for (size_t i = 0; i < 3; i++) EXPECT_EQ(first_results[i].token, drawn[i]);
    EXPECT_EQ(second_results[0].token, drawn[3]);
    expect_embedded({~3, ~2, 7, ~0}, {drawn[3], 42, 7, drawn[0]});
    // That step did not sample: the tokens are still those of the last one that did.
    expect_embedded({~1, ~3}, {drawn[1], drawn[3]});
    device.run(2, [&](Queue& q) { ops.sample(q, logits, second, second_results); });
    expect_embedded({~0}, {drawn[3]});
  });
}

// Slots keep their settings and history; advancing them counts for penalties, drafts `ahead` only for their own row.
TEST_P(OpsSampling, SlotsFollowTheSampler) {
  for_settings([&](OpsCase& device, Ops& ops) {
    const std::vector<uint8_t> usable(kVocab, 1);
    Sampler sampler(usable);
    constexpr int kSlots = 4;
    const std::vector<int32_t> sampled = {9, 9}, ends = {11};
    std::vector<int32_t> prompt;  // half of the vocabulary: what it counts for shows in most draws
    for (int32_t id = 0; id < kVocab; id += 2) prompt.push_back(id);
    std::vector<SamplingParams> params(kSlots);
    params[0] = {.temperature = 0.9f, .top_k = 20};
    params[1] = {.temperature = 1.3f, .top_p = 0.8f};
    params[1].presence_penalty = 0.7f, params[1].frequency_penalty = 0.4f, params[1].logit_bias = {{5, 2.0f}, {6, -100.0f}};
    params[2] = {.temperature = 0.0f};
    params[2].repetition_penalty = 1.4f;
    params[3] = {.temperature = 0.7f};
    params[3].repetition_penalty = 1.1f, params[3].presence_penalty = 0.5f, params[3].frequency_penalty = 1.2f;
    std::vector<SamplerState> expected;
    for (int slot = 0; slot < kSlots; slot++) {
      SamplerInit init{.params = &params[size_t(slot)], .seed = 77u + unsigned(slot), .sample_index = slot, .prompt = prompt,
                       .sampled = sampled, .min_tokens = 4, .end_tokens = ends};
      ops.open_sampler(*device.queue, slot, init);
      expected.emplace_back(init, kVocab);
    }
    for (int step = 0; step < 20; step++) {
      const std::vector<Values> values = random_rows(kSlots + 1, kVocab, rng, 2.0f);
      const Tensor logits = device.upload(values);
      const std::vector<int32_t> drafts = {step % 7, 8};
      std::vector<SampleRow> rows;
      for (int slot = 0; slot < kSlots; slot++) rows.push_back({.logits_row = slot, .slot = slot, .position = 5 + step});
      rows.push_back({.logits_row = kSlots, .slot = 1, .position = 7 + step, .logprobs = 2, .ahead = drafts});
      std::vector<SampleResult> results(rows.size());
      device.run(kSlots + 1, [&](Queue& q) { ops.sample(q, logits, rows, results); });
      for (size_t i = 0; i < rows.size(); i++) {
        const SampleRow& row = rows[i];
        const float* from = values[size_t(row.logits_row)].data();
        const int32_t token = sampler.sample(from, expected[size_t(row.slot)], row.ahead, uint32_t(row.position), uint32_t(row.slot));
        ASSERT_EQ(results[i].token, token) << "step " << step << ", row " << i;
        if (row.logprobs < 0) continue;
        const RowLogprobs logprobs = sampler.logprobs(from, token, row.logprobs);
        EXPECT_EQ(results[i].logprob, logprobs.token_logprob);
        EXPECT_EQ(results[i].top, logprobs.top);
      }
      for (int slot = 0; slot < kSlots; slot++) {
        const std::vector<int32_t> taken = {results[size_t(slot)].token};
        ops.advance_sampler(*device.queue, slot, taken);
        expected[size_t(slot)].advance(taken);
      }
    }
  });
}

// What broke a row of logits is that row's own: it draws nothing, and a row that takes its token is not a number either.
TEST_P(OpsSampling, ARowThatIsNoNumberDrawsNothing) {
  for_settings([&](OpsCase& device, Ops& ops) {
    TinyWeights weights;
    weights.add("embed", random_matrix(WeightFormat::kBF16, kVocab, 16, rng));
    weights.fill(ops);
    std::vector<Values> values = random_rows(2, kVocab, rng);
    values[0].assign(kVocab, NAN);
    const Tensor logits = device.upload(values), out = device.tensor(2, 16);
    SamplingParams greedy{.temperature = 0.0f};
    ops.open_sampler(*device.queue, 0, {.params = &greedy});
    const std::vector<SampleRow> rows = {{.logits_row = 0, .logprobs = 1}, {.logits_row = 1}};
    std::vector<SampleResult> results(2);
    device.run(2, [&](Queue& q) { ops.sample(q, logits, rows, results); });
    EXPECT_EQ(results[0].token, -1);
    EXPECT_EQ(results[1].token, highest(values[1]));
    ASSERT_TRUE(device.step({~0, ~1}, [&](Queue& q) { ops.embed(q, ops.weight("embed"), 1.0f, out); }).ok());
    const std::vector<Values> got = device.download(out);
    for (size_t i = 0; i < 16; i++) EXPECT_TRUE(std::isnan(got[0][i]) && !std::isnan(got[1][i]));
  });
}

FT_FOR_ALL_DEVICES(OpsSampling);

}  // namespace
}  // namespace freetoken
