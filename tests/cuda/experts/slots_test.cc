// Slots against the model of them: random traces, eager and as graphs; limits; what prefill leaves of decode's experts.
#include "cuda/experts/slots_support.h"
#include "cuda/kernels/expert_gather.h"
#include "cuda/runtime/graph_capture.h"

namespace freetoken::cuda {
namespace {

TEST(ExpertSlots, RandomTracesAreTheModels) {
  const uint64_t starts[] = {0, 250, 65530, (uint64_t(1) << 32) - 10};
  for (uint32_t seed = 0; seed < 12; seed++) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    emu::reseed(seed);
    std::mt19937 rng(seed);
    const ExpertBytes experts(1 + int(rng() % 3), 1 + int(rng() % 40), 16 * (1 + int64_t(rng() % 40)), seed);
    const int count = 1 + int(rng() % 24);
    SlotsUnderTest test(experts, count, starts[seed % 4]);
    for (int i = 0; i < 24; i++) {
      const RandomCall call(rng, experts, count);
      test.choose(call.choice);
      ASSERT_EQ(test.enqueue(call.layer, int(call.choice.size()), call.round), cudaSuccess);
      test.model.call(call.layer, call.choice, call.round.begin, call.round.end, call.round.keep);
      test.check(call.layer, call.choice, call.round);
      if (HasFatalFailure()) return;
    }
  }
}

// More slots than the block has threads, and all experts that a layer may have.
TEST(ExpertSlots, ManySlots) {
  std::mt19937 rng(5);
  const ExpertBytes experts(3, kMaxAdmittedExperts, 16, 5);
  SlotsUnderTest test(experts, 2100);
  for (int i = 0; i < 10; i++) {
    const SlotRound round{0, kMaxAdmittedExperts, i % 4 != 3};
    std::vector<int32_t> choice(i % 2 ? 1500 : 300);
    for (int32_t& e : choice) e = int32_t(rng() % kMaxAdmittedExperts);
    test.choose(choice);
    ASSERT_EQ(test.enqueue(i % 3, int(choice.size()), round), cudaSuccess);
    test.model.call(i % 3, choice, round.begin, round.end, round.keep);
    if (i > 6) test.check(i % 3, choice, round);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(test.model.misses, 2100u);
}

// Extents that are no whole number of pieces, several blocks' worth.
TEST(ExpertSlots, GathersLargeExtents) {
  const ExpertBytes experts(1, 4, 5 * 16384 + 4096 + 48, 9);
  SlotsUnderTest test(experts, 3);
  for (const std::vector<int32_t>& choice : {std::vector<int32_t>{3, 0, 3}, {1, 0, 2}, {3}}) {
    test.choose(choice);
    ASSERT_EQ(test.enqueue(0, int(choice.size()), {0, 4, true}), cudaSuccess);
    test.model.call(0, choice, 0, 4, true);
    test.check(0, choice, {0, 4, true});
  }
}

TEST(ExpertSlots, ACapturedCallReadsWhatTheRouterChoseNow) {
  std::mt19937 rng(3);
  const ExpertBytes experts(2, 12, 272, 3);
  SlotsUnderTest test(experts, 6);
  const SlotRound round{0, 12, true};
  const auto capture = [&](int layer) {
    cudaGraphExec_t graph = nullptr;
    const auto body = [&] { return cuda_status(test.enqueue(layer, 4, round), "moe"); };
    const Status status = capture_graph(test.stream.get(), body, &graph);
    EXPECT_TRUE(status.ok()) << status.message();
    return graph;
  };
  cudaGraphExec_t graphs[] = {capture(0), capture(1)};
  for (int i = 0; i < 40; i++) {
    std::vector<int32_t> choice(4);
    for (int32_t& e : choice) e = int32_t(rng() % 12);
    test.choose(choice);
    if (i == 25) {  // new addresses: the old graphs are of no use
      ASSERT_TRUE(test.slots.resize(9, experts.bytes, 2, 12).ok());
      LruModel emptied(9, 2, 12);
      emptied.calls = test.model.calls, emptied.hits = test.model.hits, emptied.misses = test.model.misses;
      test.model = emptied;
      for (int l = 0; l < 2; l++) {
        FT_OK(cudaGraphExecDestroy(graphs[l]));
        graphs[l] = capture(l);
      }
    }
    FT_OK(cudaGraphLaunch(graphs[i % 2], test.stream.get()));
    test.model.call(i % 2, choice, 0, 12, true);
    test.check(i % 2, choice, round);
    if (HasFatalFailure()) return;
  }
  for (cudaGraphExec_t graph : graphs) FT_OK(cudaGraphExecDestroy(graph));
}

TEST(ExpertSlots, RefusesWhatMayNotFit) {
  const ExpertBytes experts(1, 8, 64, 1);
  SlotsUnderTest test(experts, 3);
  EXPECT_EQ(test.enqueue(0, 4, {0, 8, true}), cudaErrorInvalidValue);
  EXPECT_EQ(test.enqueue(0, 40, {5, 8, true}), cudaSuccess);
  EXPECT_EQ(test.slots.enqueue(1, test.choice.p, 1, {0, 8, true}, test.sources[0]->p, 64, test.stream.get()),
            cudaErrorInvalidValue);
  EXPECT_EQ(test.enqueue(0, 1, {0, 9, true}), cudaErrorInvalidValue);
  EXPECT_EQ(test.slots.resize(3, 64, 1, 1025).code(), StatusCode::kUnsupported);
  EXPECT_EQ(test.slots.resize(0, 64, 1, 8).code(), StatusCode::kInvalidArgument);
}

TEST(ExpertSlots, RoundsCoverTheRangeAndFit) {
  const ExpertBytes experts(1, 64, 16, 1);
  for (const int count : {1, 3, 4, 16, 100}) {
    SlotsUnderTest test(experts, count);
    for (const bool decode : {true, false})
      for (const int entries : {2, 8, 400}) {
        int at = 10;
        for (const SlotRound& round : test.slots.rounds(10, 64, entries, decode)) {
          EXPECT_EQ(round.begin, at);
          EXPECT_LE(std::min(entries, round.end - round.begin), count);
          EXPECT_EQ(round.keep, decode);
          at = round.end;
        }
        EXPECT_EQ(at, 64);
      }
    EXPECT_EQ(test.slots.rounds(0, 64, std::min(count, 8), true).size(), 1u);
  }
}

// A prompt that needs every expert of every layer, between two tokens that need the same few.
TEST(ExpertSlots, PrefillLeavesDecodeThreeQuartersOfTheSlots) {
  const ExpertBytes experts(4, 32, 16, 1);
  SlotsUnderTest test(experts, 32);
  std::vector<int32_t> all(32);
  for (int e = 0; e < 32; e++) all[size_t(e)] = e;
  const auto run = [&](int layer, const std::vector<int32_t>& choice, bool decode) {
    test.choose(choice);
    for (const SlotRound& round : test.slots.rounds(0, 32, int(choice.size()), decode))
      ASSERT_EQ(test.enqueue(layer, int(choice.size()), round), cudaSuccess);
    FT_OK(cudaStreamSynchronize(test.stream.get()));
  };
  const std::vector<int32_t> few = {4, 9, 20, 31, 7, 12};  // 24 of 4 layers
  for (int layer = 0; layer < 4; layer++) run(layer, few, true);
  for (int layer = 0; layer < 4; layer++) run(layer, all, false);
  const uint64_t before = test.slots.counters()->misses;
  for (int layer = 0; layer < 4; layer++) run(layer, few, true);
  EXPECT_EQ(test.slots.counters()->misses, before);
}

}  // namespace
}  // namespace freetoken::cuda
