// Seeded violations of the contract: each is detected, and said with what it concerns.
#include <gtest/gtest.h>

#include "ref_ops/poison.h"
#include "ref_ops/ref_case.h"

namespace freetoken {
namespace {

using namespace freetoken::testing;

// Writes where a sanitizer would object.
__attribute__((no_sanitize("address"), noinline)) void scribble(volatile uint8_t* p) { *p = 42; }

// [host pointer of the first byte] of a tensor, from inside the device.
uint8_t* inside(ref::DeviceMemory& memory, const Tensor& t) { return memory.at(t.address, 4); }

TEST(RefOpsMemory, AddressesAreNoHostPointers) {
  RefCase c;
  for (const uint64_t address : {c.tensor(3, 5).address, c.ops().weight("embed").address,
                                 c.ops().extent_address("layers.0.1.experts.0")}) {
    EXPECT_NE(address, 0u);
    // A canonical x86-64 address repeats bit 47 (56 with five-level tables) upwards.
    EXPECT_NE(int64_t(address) >> 56, 0);
    EXPECT_NE(int64_t(address) >> 56, -1);
  }
}

TEST(RefOpsMemory, AWriteBesideATensorIsNamed) {
  RefCase c;
  c.tensor(1, 1);
  const Tensor t = c.tensor(4, 40);
  const int64_t bytes = t.row_bytes * t.rows;
  for (const auto& [offset, text] : std::vector<std::pair<int64_t, std::string>>{
           {bytes, "0 bytes past the end of buffer"}, {bytes + 100, "100 bytes past the end of buffer"},
           {-1, "1 bytes before the start of buffer"}, {-256, "256 bytes before the start of buffer"}})
    c.expect_violation(c.bare_step(1, [&] {
      c.ref().probe(c.queue(), [&](ref::DeviceMemory& m) { scribble(inside(m, t) + offset); });
    }), text);
  EXPECT_TRUE(c.bare_step(1, [] {}).ok()) << "the guard is whole again";
}

TEST(RefOpsMemory, AWriteToWeightsIsFoundWithinAsManyStepsAsThereAreWeights) {
  RefCase c;
  const Weight w = c.ops().weight("layers.1.1.down");
  Status status = c.bare_step(1, [&] {
    c.ref().probe(c.queue(), [&](ref::DeviceMemory& m) { m.at(w.address, 1)[0] ^= 1; });
  });
  for (int step = 0; status.ok() && step < 200; step++) status = c.bare_step(1, [] {});
  c.expect_violation(status, "weights layers.1.1.down were written");
}

// Rows behind those an operation wrote, and columns behind its own, hold nothing.
TEST(RefOpsMemory, ReadingWhatWasNotWrittenIsNamed) {
  RefCase c;
  const int hidden = c.model().spec().hidden;
  const Tensor x = c.tensor(8, hidden), y = c.tensor(8, hidden);
  EXPECT_TRUE(c.bare_step(8, [&] { c.ops().embed(c.queue(), c.ops().weight("embed"), 1.0f, x); }).ok());
  EXPECT_TRUE(c.bare_step(2, [&] { c.ops().embed(c.queue(), c.ops().weight("embed"), 1.0f, x.first_rows(2)); }).ok());
  std::vector<float> out(size_t(3 * hidden));
  c.expect_violation(c.bare_step(3, [&] { c.ops().read(c.queue(), x.first_rows(3), out); }), "which was never written");
  const std::vector<int32_t> picked = {0, 2};
  c.expect_violation(c.bare_step(3, [&] { c.ops().gather(c.queue(), x.first_rows(3), picked, y.first_rows(2)); }),
                     "takes row 2 of x, which was never written");
  c.expect_violation(c.bare_step(3, [&] { c.ops().add(c.queue(), x.first_rows(3), y.first_rows(3), 1.0f); }),
                     "add: reads x[2][0], which was never written");
}

TEST(RefOpsMemory, PoisonReadsAsSignallingNaNInEveryWidth) {
  float wide, narrow;
  std::memcpy(&wide, &ref::kPoisonWord, 4);
  narrow = bf16_to_f32(ref::kPoisonHalf);
  EXPECT_TRUE(std::isnan(wide));
  EXPECT_TRUE(std::isnan(narrow));
  EXPECT_EQ(ref::kPoisonWord & 0x00400000u, 0u) << "signalling";
}

TEST(RefOpsCalls, HandlesAndSizesAreChecked) {
  RefCase c;
  Ops& ops = c.ops();
  const int hidden = c.model().spec().hidden;
  const Tensor x = c.tensor(4, hidden), out = c.tensor(4, 96), small = c.tensor(4, hidden);
  float host[64] = {};
  const Tensor foreign{reinterpret_cast<uint64_t>(host), DType::kF32, 1, 64, 256};
  Tensor shifted = x, long_rows = x, many = x;
  shifted.address += 4, long_rows.row_bytes *= 2, many.rows = 5;
  Weight q = ops.weight("layers.0.0.q");
  auto linear = [&](Tensor from, Weight w, Tensor to) {
    return c.bare_step(4, [&] {
      const LinearOutput o{w, {}, to};
      ops.linear(c.queue(), from, {&o, 1});
    });
  };
  c.expect_violation(linear(foreign, q, out), "an address that is none of this device's");
  c.expect_violation(linear(shifted, q, out), "is not inside one buffer");
  c.expect_violation(linear(long_rows, q, out), "is not inside one buffer");
  c.expect_violation(linear(many, q, out), "is not inside one buffer");
  c.expect_violation(linear(x, q, out), "a weight is [128, 64], not [96, 64]");
  c.expect_violation(linear(x, {q.address + 64, q.format, q.n, q.k}, out), "is no weight of this device");
  c.expect_violation(linear(x, ops.weight("layers.1.0.o"), x), "an output lies on an input");
  c.expect_violation(c.bare_step(3, [&] { ops.embed(c.queue(), ops.weight("embed"), 1.0f, x); }), "4 rows, but the step has 3");
  c.expect_violation(c.bare_step(4, [&] {
    ops.norm(c.queue(), x, {.kind = NormKind::kRms}, ops.vector("layers.0.0.q_norm"), {}, small);
  }), "weight is [1, 32], not [1, 64]");
  std::vector<float> short_out(7);
  c.expect_violation(c.bare_step(4, [&] { ops.read(c.queue(), x, short_out); }), "256 values into room for 7");
  const std::vector<int32_t> past = {4};
  c.expect_violation(c.bare_step(4, [&] { ops.gather(c.queue(), x, past, small.first_rows(1)); }), "row 4 of x");
  EXPECT_TRUE(c.bare_step(4, [&] { ops.embed(c.queue(), ops.weight("embed"), 1.0f, x); }).ok()) << "and works again";
}

TEST(RefOpsCalls, StepsBeginAndEnd) {
  RefCase c;
  c.ops().embed(c.queue(), c.ops().weight("embed"), 1.0f, c.tensor(1, 64));
  c.expect_violation(c.ops().wait(c.queue(), {}), "embed: outside a step");
  c.expect_violation(c.bare_step(1, [&] { c.ops().copy_pages(c.queue(), {}); }), "copy_pages: inside a step");
  c.expect_violation(c.bare_step(1, [&] { c.ops().begin_step(c.queue(), {}); }), "begin_step: inside a step");
  c.expect_violation(c.bare_step(17, [] {}), "17 rows, but reserve() said at most 16");
  c.expect_violation(c.ops().wait(c.queue(), {1000}), "which was never given");
}

TEST(RefOpsCalls, BatchesAreChecked) {
  RefCase c;
  const std::vector<int32_t> pages = {0};
  std::vector<const int32_t*> lists(c.model().kv_layout().groups.size(), pages.data());
  auto batch = [&](std::vector<BatchRow> rows, std::vector<BatchSequence> sequences) {
    c.ops().begin_step(c.queue(), {rows, sequences});
    return c.ops().wait(c.queue(), c.ops().end_step(c.queue()));
  };
  const int32_t* const* p = lists.data();
  c.expect_violation(batch({{0, 0, 1}, {0, 2, 1}}, {{0, 2, p}}), "row 1 is not the next one");
  c.expect_violation(batch({{0, 0, 1}, {0, 1, 1}}, {{0, 1, p}}), "rows without a sequence");
  c.expect_violation(batch({{0, 0, 1}, {1, 0, 1}}, {{1, 1, p}, {0, 1, p}}), "sequence 0 has 1 rows from row 1, which do not follow");
  c.expect_violation(batch({{0, 0, 1}}, {{0, 1, nullptr}}), "has no pages");
  c.expect_violation(batch({{0, 0, ~0}}, {{0, 1, p}}), "but it sampled 0 rows");
  c.expect_violation(batch({{0, 5000, 1}}, {{0, 1, p}}), "position 5000, but the model has 1024");
}

TEST(RefOpsCalls, PartsOfALayerComeInOrderWithTheSameInput) {
  RefCase c;
  Ops& ops = c.ops();
  const int hidden = c.model().spec().hidden;
  const MoeSpec& moe = c.model().spec().layers[0].sublayers[1].moe;
  ResidentExperts resident;
  std::vector<uint64_t> addresses;
  for (int e = 0; e < moe.experts; e++) addresses.push_back(ops.extent_address("layers.0.1.experts." + std::to_string(e)));
  ExpertSet set{resident.add_layer(addresses), moe.experts, *ops.expert_layout("layers.0.1.experts.0"), &resident};
  const Tensor x = c.tensor(4, hidden), out = c.tensor(4, hidden);
  auto route = [&](int rows) {
    ops.embed(c.queue(), ops.weight("embed"), 1.0f, x.first_rows(rows));
    ops.route(c.queue(), Lane::kResumable, x.first_rows(rows), {.spec = &moe, .router = ops.weight("layers.0.1.router"), .selection_bias = {}});
  };
  auto part = [&](int rows, int begin, int end) {
    ops.moe(c.queue(), Lane::kResumable, x.first_rows(rows), moe, set, {begin, end}, out.first_rows(rows));
  };
  auto start = [&] {
    EXPECT_TRUE(c.bare_step(2, [&] { route(2), part(2, 0, 3); }).ok());
  };
  start();
  c.expect_violation(c.bare_step(2, [&] { part(2, 4, 8); }), "begins with expert 4, but the lane's next is 3");
  start();
  auto part_of_three = [&] { ops.embed(c.queue(), ops.weight("embed"), 1.0f, x.first_rows(3)), part(3, 3, 8); };
  c.expect_violation(c.bare_step(3, part_of_three), "the lane's last route() was for 2 rows");
  start();
  c.expect_violation(c.bare_step(2, [&] {
    c.ref().probe(c.queue(), [&](ref::DeviceMemory& m) { inside(m, x)[2] ^= 1; });
    part(2, 3, 8);
  }), "x is not what it was");
  start();
  EXPECT_TRUE(c.bare_step(2, [&] { part(2, 3, 8); }).ok());
  c.expect_violation(c.bare_step(2, [&] { part(2, 3, 9); }), "experts 3..8 of 8");
  // An answer must lie on the device.
  ResidentExperts stray;
  std::vector<uint64_t> wrong(addresses.size(), reinterpret_cast<uint64_t>(&stray));
  set.layer = stray.add_layer(wrong), set.resolver = &stray;
  c.expect_violation(c.bare_step(2, [&] { route(2), part(2, 0, 8); }), "is an address that is none of this device's");
}

TEST(RefOpsCalls, SlotsMustBeOpen) {
  RefCase c;
  const Tensor logits = c.tensor(2, c.model().spec().vocab);
  auto draw = [&](int slot, int row) {
    static std::vector<SampleResult> results(1);
    const SampleRow sample{.logits_row = row, .slot = slot};
    return c.bare_step(1, [&] { c.ops().sample(c.queue(), logits, {&sample, 1}, results); });
  };
  c.expect_violation(draw(3, 0), "slot 3 was never opened");
  c.expect_violation(draw(16, 0), "slot 16, but reserve() said 16");
  c.expect_violation(draw(0, 2), "row 2 of 2 rows of logits");
  const std::vector<int32_t> tokens = {1};
  c.ops().advance_sampler(c.queue(), 5, tokens);
  c.expect_violation(c.bare_step(1, [] {}), "slot 5 was never opened");
}

// The host sees nothing of a step before it waited for it.
TEST(RefOpsCalls, ResultsAreUnwrittenUntilTheStepIsDone) {
  RefCase c;
  const SamplingParams greedy{.temperature = 0.0f};
  c.ops().open_sampler(c.queue(), 0, {.params = &greedy});
  const Tensor logits = c.tensor(1, c.model().spec().vocab);
  std::vector<SampleResult> results(1);
  std::vector<float> values(size_t(logits.cols), 1.0f);
  const SampleRow row{.logprobs = 1};
  EXPECT_TRUE(c.bare_step(1, [&] {
    c.ops().sample(c.queue(), logits, {&row, 1}, results);
    c.ops().read(c.queue(), logits, values);
    EXPECT_LT(results[0].token, -1);
    EXPECT_TRUE(std::isnan(values[0]));
  }).ok());
  EXPECT_EQ(results[0].token, 0);
  EXPECT_EQ(results[0].top.size(), 1u);
  EXPECT_EQ(values[0], 0.0f);
}

// Spans belong to the caller again when the call returns.
TEST(RefOpsCalls, SpansAreCopied) {
  RefCase c;
  const int hidden = c.model().spec().hidden;
  const Tensor x = c.tensor(2, hidden), y = c.tensor(1, hidden);
  std::vector<int32_t> picked = {1}, pages = {2};
  std::vector<float> got(static_cast<size_t>(hidden)), expected(static_cast<size_t>(hidden));
  c.begin({{&pages, 0, {5, 6}}});
  pages[0] = 99;
  c.ops().embed(c.queue(), c.ops().weight("embed"), 1.0f, x);
  c.ops().gather(c.queue(), x, picked, y);
  picked[0] = 99;
  c.ops().read(c.queue(), y, got);
  EXPECT_TRUE(c.ops().wait(c.queue(), c.ops().end_step(c.queue())).ok());
  c.begin({{&c.page_zero, 0, {6}}});
  c.ops().embed(c.queue(), c.ops().weight("embed"), 1.0f, y);
  c.ops().read(c.queue(), y, expected);
  EXPECT_TRUE(c.ops().wait(c.queue(), c.ops().end_step(c.queue())).ok());
  EXPECT_EQ(got, expected);
}

// What page tables can get wrong.
class RefOpsPages : public ::testing::Test {
 protected:
  Status step(const std::vector<ModelRunner::Chunk>& chunks) {
    return c.model_step(chunks, [] {});
  }
  static std::vector<int32_t> tokens(int count) { return std::vector<int32_t>(size_t(count), 7); }
  RefCase c{llama_spec(), 64};
  const std::vector<int32_t> a = {1, 2}, b = {2, 1}, outside = {8}, none = {-1}, shared = {1, 3};
};

TEST_F(RefOpsPages, OutsideThePool) {
  c.expect_violation(step({{&outside, 0, tokens(1)}}), "append to page 8 of KV group 0 is none of its 8 pages");
  c.expect_violation(step({{&none, 0, tokens(1)}}), "page -1 of KV group 0");
  const std::vector<PageCopy> copies = {{0, 1, 8}};
  c.ops().copy_pages(c.queue(), copies);
  c.expect_violation(c.ops().wait(c.queue(), {}), "page 8 of KV group 0");
}

TEST_F(RefOpsPages, GapsAndWhatWasNeverWritten) {
  c.expect_violation(step({{&a, 5, tokens(1)}}), "append at offset 5 of page 1 of KV group 0, layer 0, but only 0 positions");
  c.expect_violation(step({{&a, 64, tokens(1)}}), "reads 64 positions of page 1 of KV group 0, layer 0, of which 0 were written");
}

// Page 1 is given to another sequence while the first still uses it.
TEST_F(RefOpsPages, APageFreedTooEarly) {
  EXPECT_TRUE(step({{&a, 0, tokens(64)}}).ok());
  EXPECT_TRUE(step({{&a, 64, tokens(3)}}).ok());
  EXPECT_TRUE(step({{&shared, 0, tokens(2)}}).ok());
  c.expect_violation(step({{&a, 67, tokens(1)}}), "of which 2 were written");
}

TEST_F(RefOpsPages, TwoSequencesThatWriteOnePage) {
  c.expect_violation(step({{&a, 0, tokens(2)}, {&shared, 0, tokens(2)}}), "sequences 0 and 1 both write page 1");
}

// Drafts that were rejected may be written again, and hide nothing: a page is as long as the last position written.
TEST_F(RefOpsPages, TruncationForgetsWhatFollows) {
  EXPECT_TRUE(step({{&a, 0, tokens(20)}}).ok());
  EXPECT_TRUE(step({{&a, 12, tokens(2)}}).ok());
  c.expect_violation(step({{&a, 17, tokens(1)}}), "append at offset 17 of page 1 of KV group 0, layer 0, but only 14 positions");
}

}  // namespace
}  // namespace freetoken
