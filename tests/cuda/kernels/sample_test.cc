// The sampler on the device against the CPU's (cpp/sample), which its own tests hold against doubles: every token, every
// log-probability and every list equal, bit for bit, over random settings, histories, drafts and masks.
#include "cuda/kernels/sample.h"

#include <algorithm>
#include <limits>

#include "core/fp_env.h"
#include "cuda/kernels/rows_support.h"
#include "sample/sampler.h"
#include "sample/sampler_state.h"

namespace freetoken::cuda {
namespace {

using testing::DeviceArray;
using testing::same_bits;

constexpr float kInf = std::numeric_limits<float>::infinity();

// One sampled sequence on both sides. Arrays on the device live as long as this.
class Slot {
 public:
  Slot(const SamplerInit& init, int vocab, SamplerSlot* slots, int index)
      : state(init, vocab), sample_index(init.sample_index), slots_(slots), index_(index), vocab_(vocab), history_(size_t(vocab)) {
    const SamplingParams& p = *init.params;
    SamplerSlot slot;
    slot.temperature = p.temperature;
    slot.top_p = p.top_p;
    slot.min_p = p.min_p;
    slot.top_k = p.top_k;
    slot.seed = init.seed;
    slot.sample_index = init.sample_index;
    slot.presence_penalty = p.presence_penalty;
    slot.frequency_penalty = p.frequency_penalty;
    slot.repetition_penalty = p.repetition_penalty;
    slot.min_tokens = init.min_tokens;
    std::vector<int32_t> ends;
    for (const int32_t id : init.end_tokens)
      if (id >= 0 && id < vocab && std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
    keep(ends, &slot.end_tokens, &slot.end_count);
    std::vector<std::pair<int32_t, float>> biases = p.logit_bias;
    std::sort(biases.begin(), biases.end());
    std::vector<int32_t> ids;
    std::vector<float> values;
    for (const auto& [id, bias] : biases) {
      if (id < 0 || id >= vocab) continue;
      if (ids.empty() || ids.back() != id) ids.push_back(id), values.push_back(0.0f);
      values.back() += bias <= kBanBias ? -kInf : bias;
    }
    keep(ids, &slot.bias_ids, &slot.bias_count);
    biases_ = std::make_unique<DeviceArray<float>>(values);
    slot.bias = biases_->data();
    const bool penalises = p.presence_penalty != 0 || p.frequency_penalty != 0 || p.repetition_penalty != 1.0f;
    if (penalises) slot.history = history_.data();
    const DeviceArray<int32_t> prompt(std::vector<int32_t>(init.prompt.begin(), init.prompt.end()));
    const DeviceArray<int32_t> sampled(std::vector<int32_t>(init.sampled.begin(), init.sampled.end()));
    EXPECT_EQ(int(launch_open_sampler(slots, index, slot, prompt.data(), p.repetition_penalty != 1.0f ? int(init.prompt.size()) : 0,
                                      sampled.data(), int(init.sampled.size()), vocab, nullptr)), 0);
    EXPECT_EQ(int(cudaDeviceSynchronize()), 0);
  }
  void advance(const std::vector<int32_t>& tokens) {
    state.advance(tokens);
    const DeviceArray<int32_t> device(tokens);
    EXPECT_EQ(int(launch_advance_sampler(slots_, index_, device.data(), int(tokens.size()), vocab_, nullptr)), 0);
    EXPECT_EQ(int(cudaDeviceSynchronize()), 0);
  }

  SamplerState state;
  int32_t sample_index;

 private:
  void keep(const std::vector<int32_t>& values, const int32_t** data, int32_t* count) {
    kept_.push_back(std::make_unique<DeviceArray<int32_t>>(values));
    *data = kept_.back()->data();
    *count = int32_t(values.size());
  }
  SamplerSlot* slots_;
  int index_, vocab_;
  DeviceArray<uint32_t> history_;
  std::vector<std::unique_ptr<DeviceArray<int32_t>>> kept_;
  std::unique_ptr<DeviceArray<float>> biases_;
};

// As CpuOps computes: denormals are zero. The device has to get there on its own.
class CpuEnvironment {
 public:
  CpuEnvironment() : before_(_mm_getcsr()) { set_denormals_to_zero(); }
  ~CpuEnvironment() { _mm_setcsr(before_); }

 private:
  unsigned before_;
};

struct Row {
  SampleRowView view;
  std::vector<int32_t> ahead;
};

// Samples `rows` on the device and compares each with the CPU.
void compare(const std::vector<std::vector<float>>& logits, const std::vector<uint8_t>& usable,
             const std::vector<std::unique_ptr<Slot>>& slots, const SamplerSlot* device_slots, std::vector<Row> rows,
             const std::string& what) {
  const int vocab = int(usable.size()), stride = vocab + 3, count = int(rows.size()), top_stride = 1100;
  std::vector<float> values(logits.size() * size_t(stride), 1e30f);
  for (size_t r = 0; r < logits.size(); r++) std::copy(logits[r].begin(), logits[r].end(), values.begin() + long(r) * stride);
  std::vector<int32_t> ahead;
  std::vector<SampleRowView> views;
  for (Row& row : rows) {
    row.view.ahead_begin = int32_t(ahead.size());
    row.view.ahead_count = int32_t(row.ahead.size());
    ahead.insert(ahead.end(), row.ahead.begin(), row.ahead.end());
    views.push_back(row.view);
  }
  const DeviceArray<float> device_logits(values), top_logprobs(size_t(count * top_stride));
  const DeviceArray<uint8_t> device_usable(usable), scratch(size_t(sample_scratch_bytes(vocab)));
  const DeviceArray<SampleRowView> device_rows(views);
  const DeviceArray<int32_t> device_ahead(ahead), top_ids(size_t(count * top_stride)), sampled(static_cast<size_t>(count));
  const DeviceArray<SampleResultView> results(static_cast<size_t>(count));
  const SampleView view{device_logits.data(), stride, vocab, device_usable.data(), device_slots, device_rows.data(),
                        device_ahead.data(), results.data(), top_ids.data(), top_logprobs.data(), top_stride, sampled.data()};
  FT_EXPECT_CUDA(launch_sample(view, count, scratch.data(), nullptr));
  const std::vector<SampleResultView> got = results.read();
  const std::vector<int32_t> got_sampled = sampled.read(), got_ids = top_ids.read();
  const std::vector<float> got_logprobs = top_logprobs.read();
  Sampler cpu(usable);
  const CpuEnvironment environment;
  for (int r = 0; r < count; r++) {
    const Row& row = rows[size_t(r)];
    const std::vector<float>& x = logits[size_t(row.view.logits_row)];
    int32_t token = row.view.target;
    if (token < 0) {
      const Slot& slot = *slots[size_t(row.view.slot)];
      token = cpu.sample(x.data(), slot.state, row.ahead, uint32_t(row.view.position), uint32_t(slot.sample_index));
    }
    const SampleResultView& g = got[size_t(r)];
    ASSERT_EQ(g.token, token) << what << ", row " << r;
    EXPECT_EQ(got_sampled[size_t(r)], token);
    RowLogprobs expected;
    if (row.view.logprobs >= 0 && token >= 0) expected = cpu.logprobs(x.data(), token, row.view.logprobs);
    ASSERT_TRUE(same_bits(&g.logprob, &expected.token_logprob, 1)) << what << ", row " << r << ": " << g.logprob << " " << expected.token_logprob;
    ASSERT_EQ(g.top_count, int(expected.top.size())) << what << ", row " << r;
    for (size_t i = 0; i < expected.top.size(); i++) {
      ASSERT_EQ(got_ids[size_t(r * top_stride) + i], expected.top[i].first) << what << ", row " << r << ", rank " << i;
      ASSERT_TRUE(same_bits(&got_logprobs[size_t(r * top_stride) + i], &expected.top[i].second, 1)) << what << ", rank " << i;
    }
  }
}

std::vector<float> random_row(std::mt19937& rng, int vocab, int kind) {
  std::normal_distribution<float> normal(0.0f, kind % 3 == 0 ? 0.05f : kind % 3 == 1 ? 1.0f : 5.0f);
  std::vector<float> x(static_cast<size_t>(vocab));
  for (float& v : x) v = normal(rng);
  if (kind % 4 == 1)  // many ties
    for (float& v : x) v = std::round(v);
  if (kind % 5 == 2)
    for (int i = 0; i < vocab / 3; i++) x[rng() % x.size()] = i % 2 ? -kInf : NAN;
  if (kind % 7 == 3)  // far below the rest, zero, denormal
    for (int i = 0; i < vocab / 3; i++) x[rng() % x.size()] = i % 3 == 0 ? -200.0f : i % 3 == 1 ? -0.0f : 1e-41f;
  return x;
}

template <class T>
T pick(std::mt19937& rng, std::initializer_list<T> values) {
  return values.begin()[rng() % values.size()];
}

SamplingParams random_params(std::mt19937& rng, int vocab) {
  SamplingParams p;
  p.temperature = pick(rng, {0.0f, 0.3f, 1.0f, 1.7f, 50.0f});
  p.top_k = pick(rng, {0, 0, 1, 5, 40, 300, 1 << 30});
  p.top_p = pick(rng, {1.0f, 1.0f, 0.999f, 0.9f, 0.5f, 1e-6f});
  p.min_p = pick(rng, {0.0f, 0.0f, 1e-4f, 0.1f, 1.0f});
  if (rng() % 2) {
    p.presence_penalty = pick(rng, {0.0f, 0.5f, -1.0f});
    p.frequency_penalty = pick(rng, {0.0f, 0.3f, -0.2f});
    p.repetition_penalty = pick(rng, {1.0f, 1.3f, 0.8f});
  }
  if (rng() % 2)
    for (int i = 0; i < 5; i++)
      p.logit_bias.emplace_back(int32_t(rng() % unsigned(vocab + 2)) - 1, pick(rng, {2.0f, -3.0f, -100.0f, 0.0f}));
  return p;
}

std::vector<int32_t> random_tokens(std::mt19937& rng, int vocab, int count) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; i++) tokens.push_back(int32_t(rng() % unsigned(vocab + 2)) - 1);  // some are no ids
  return tokens;
}

void compare_random(int vocab, int rounds, uint32_t seed) {
  std::mt19937 rng(seed);
  const DeviceArray<SamplerSlot> device_slots(4);
  for (int round = 0; round < rounds; round++) {
    std::vector<uint8_t> usable(size_t(vocab), 1);
    if (rng() % 2)
      for (int i = 0; i < vocab / 4; i++) usable[rng() % usable.size()] = 0;
    std::vector<std::unique_ptr<Slot>> slots;
    std::vector<SamplingParams> params;
    for (int s = 0; s < 4; s++) {
      const SamplingParams p = random_params(rng, vocab);
      const std::vector<int32_t> prompt = random_tokens(rng, vocab, int(rng() % 20)), sampled = random_tokens(rng, vocab, int(rng() % 6)),
                                 ends = random_tokens(rng, vocab, 3);
      const SamplerInit init{&p, uint64_t(rng()) << 32 | rng(), int32_t(rng() % 3), prompt, sampled, int32_t(rng() % 12), ends};
      slots.push_back(std::make_unique<Slot>(init, vocab, device_slots.data(), s));
      if (rng() % 2) slots.back()->advance(random_tokens(rng, vocab, 1 + int(rng() % 4)));
    }
    std::vector<std::vector<float>> logits;
    for (int r = 0; r < 5; r++) logits.push_back(random_row(rng, vocab, int(rng() % 420)));
    std::vector<Row> rows;
    for (int r = 0; r < 6; r++) {
      Row row;
      row.view.logits_row = int32_t(rng() % 5);
      row.view.slot = int32_t(rng() % 4);
      row.view.position = int32_t(rng() % 100000);
      if (rng() % 4 == 0) row.view.target = int32_t(rng() % unsigned(vocab));
      row.view.logprobs = pick(rng, {-1, -1, 0, 1, 5, 1024});
      if (rng() % 2) row.ahead = random_tokens(rng, vocab, 1 + int(rng() % 4));
      rows.push_back(row);
    }
    compare(logits, usable, slots, device_slots.data(), rows, "vocabulary " + std::to_string(vocab) + ", round " + std::to_string(round));
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(Sample, EqualsTheCpuForTinyVocabularies) {
  for (const int vocab : {1, 2, 17, 255, 256, 257}) compare_random(vocab, 12, uint32_t(vocab));
}

// More candidates than the sorted path takes, several tiles of every loop, and a last block that is not full.
TEST(Sample, EqualsTheCpuForLargerVocabularies) {
  compare_random(1500, 25, 1);
  compare_random(5003, 8, 2);
}

TEST(Sample, EqualsTheCpuForOneOfALargeModel) { compare_random(50001, 1, 3); }

// Rows with nothing to draw, rows with infinite logits, and everything banned.
TEST(Sample, BrokenRowsDrawNothing) {
  constexpr int kVocab = 700;
  const DeviceArray<SamplerSlot> device_slots(2);
  SamplingParams plain, banned;
  for (int i = 0; i < kVocab; i++) banned.logit_bias.emplace_back(i, -100.0f);
  std::vector<std::unique_ptr<Slot>> slots;
  slots.push_back(std::make_unique<Slot>(SamplerInit{&plain, 7, 0, {}, {}, 0, {}}, kVocab, device_slots.data(), 0));
  slots.push_back(std::make_unique<Slot>(SamplerInit{&banned, 7, 0, {}, {}, 0, {}}, kVocab, device_slots.data(), 1));
  std::vector<uint8_t> usable(kVocab, 1);
  usable[5] = 0;
  std::vector<std::vector<float>> logits(5, std::vector<float>(kVocab, 0.5f));
  logits[0].assign(kVocab, NAN);
  logits[1].assign(kVocab, -kInf);
  logits[2][5] = kInf;                           // not usable: the rest is drawn, and the log-probability is broken
  logits[3][9] = logits[3][600] = kInf;          // the first of them
  logits[1][5] = 3.0f;                           // only an unusable one is there
  std::vector<Row> rows;
  for (int r = 0; r < 5; r++) rows.push_back({{r, 0, r, -1, 3}, {}});
  rows.push_back({{4, 1, 3, -1, 3}, {}});        // banned
  rows.push_back({{0, 0, 3, 5, 2}, {}});         // a target in a broken row
  compare(logits, usable, slots, device_slots.data(), rows, "broken rows");
  compare(logits, usable, slots, device_slots.data(), {rows[5]}, "alone");
}

// One row more than there are blocks: a block takes a second row with the scratch of the first.
TEST(Sample, MoreRowsThanBlocks) {
  constexpr int kVocab = 600;
  std::mt19937 rng(11);
  const DeviceArray<SamplerSlot> device_slots(1);
  SamplingParams p;
  p.top_p = 0.8f;
  std::vector<std::unique_ptr<Slot>> slots;
  slots.push_back(std::make_unique<Slot>(SamplerInit{&p, 99, 1, {}, {}, 0, {}}, kVocab, device_slots.data(), 0));
  std::vector<std::vector<float>> logits;
  std::vector<Row> rows;
  for (int r = 0; r < kSampleBlocks + 2; r++) {
    logits.push_back(random_row(rng, kVocab, r));
    rows.push_back({{r, 0, 1000 + r, -1, r % 3}, {}});
  }
  compare(logits, std::vector<uint8_t>(kVocab, 1), slots, device_slots.data(), rows, "many rows");
}

TEST(Sample, NoRowsIsNoLaunch) {
  FT_EXPECT_CUDA(launch_sample({}, 0, nullptr, nullptr));
  FT_EXPECT_CUDA(launch_advance_sampler(nullptr, 0, nullptr, 0, 5, nullptr));
}

}  // namespace
}  // namespace freetoken::cuda
