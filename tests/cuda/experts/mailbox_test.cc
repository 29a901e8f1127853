// Experts that the host has to be asked for: answers in any order and late, failures, answers that come twice or never,
// the end of a device that waits.
#include "cuda/experts/slots_support.h"
#include "cuda/experts/slow_resolver.h"
#include "cuda/kernels/expert_gather.h"
#include "cuda/runtime/graph_capture.h"

namespace freetoken::cuda {
namespace {

void random_trace(uint32_t seed, int delay_us) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  emu::reseed(seed);
  std::mt19937 rng(seed);
  const ExpertBytes file(1 + int(rng() % 3), 1 + int(rng() % 24), 16 * (1 + int64_t(rng() % 20)), seed);
  const int count = 1 + int(rng() % 16);
  SlowResolver resolver(file, seed, delay_us);
  SlotsUnderTest test(file, count);
  ASSERT_TRUE(test.slots.use_resolver(&resolver).ok());
  int posts = 0;
  for (int i = 0; i < 20; i++) {
    const RandomCall call(rng, file, count);
    test.choose(call.choice);
    ASSERT_EQ(test.enqueue(call.layer, int(call.choice.size()), call.round, true), cudaSuccess);
    posts += !test.model.call(call.layer, call.choice, call.round.begin, call.round.end, call.round.keep).empty();
    test.check(call.layer, call.choice, call.round);
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_EQ(resolver.posts, posts);  // nobody is asked where all are there
  EXPECT_TRUE(test.slots.take_error(test.model.calls).ok());
}

TEST(Mailbox, AnswersInAnyOrderAndLate) {
  for (uint32_t seed = 0; seed < 10; seed++) random_trace(seed, seed % 2 ? 300 : 0);
}

TEST(Mailbox, WithoutStreamMemoryOperations) {
  emu::options().stream_memory_operations = false;
  EXPECT_FALSE(StreamValues().native());
  for (uint32_t seed = 50; seed < 54; seed++) random_trace(seed, 100);
  emu::options().stream_memory_operations = true;
  EXPECT_TRUE(StreamValues().native());
}

TEST(Mailbox, InACapturedGraph) {
  const ExpertBytes file(2, 10, 528, 4);
  SlowResolver resolver(file, 4, 200);
  SlotsUnderTest test(file, 5);
  ASSERT_TRUE(test.slots.use_resolver(&resolver).ok());
  std::mt19937 rng(4);
  const SlotRound round{0, 10, true};
  cudaGraphExec_t graph = nullptr;  // both layers, as a step has them
  const Status status = capture_graph(test.stream.get(), [&] {
    const cudaError_t first = test.enqueue(0, 4, round, true);
    return cuda_status(first != cudaSuccess ? first : test.enqueue(1, 4, round, true), "moe");
  }, &graph);
  ASSERT_TRUE(status.ok()) << status.message();
  for (int i = 0; i < 30; i++) {
    std::vector<int32_t> choice(4);
    for (int32_t& e : choice) e = int32_t(rng() % 10);
    test.choose(choice);
    FT_OK(cudaGraphLaunch(graph, test.stream.get()));
    for (int layer = 0; layer < 2; layer++) test.model.call(layer, choice, 0, 10, true);
    test.check(1, choice, round);
    if (HasFatalFailure()) return;
  }
  FT_OK(cudaGraphExecDestroy(graph));
}

TEST(Mailbox, AFailedReadIsThatCallsErrorAndReadAgainLater) {
  const ExpertBytes file(1, 8, 64, 6);
  SlowResolver resolver(file, 6, 0);
  resolver.failing = {2};
  resolver.computed_here = {5};
  SlotsUnderTest test(file, 4);
  ASSERT_TRUE(test.slots.use_resolver(&resolver).ok());
  const SlotRound round{0, 8, true};
  const auto call = [&](const std::vector<int32_t>& choice, const std::vector<int32_t>& failed) {
    test.choose(choice);
    ASSERT_EQ(test.enqueue(0, int(choice.size()), round, true), cudaSuccess);
    test.model.call(0, choice, 0, 8, true);
    for (const int32_t e : failed) test.model.drop(0, e);
    test.check(0, choice, round);
  };
  call({1, 3}, {});
  call({1, 2, 4}, {2});
  call({3, 1}, {});
  EXPECT_TRUE(test.slots.take_error(1).ok());
  const Status error = test.slots.take_error(2);
  EXPECT_EQ(error.code(), StatusCode::kIoError) << error.message();
  EXPECT_EQ(error.message(), "cannot read expert 2");
  EXPECT_TRUE(test.slots.take_error(3).ok()) << "told once";
  call({5}, {5});
  EXPECT_EQ(test.slots.take_error(4).code(), StatusCode::kUnsupported);
  resolver.failing.clear();
  resolver.computed_here.clear();
  call({2, 5}, {});
  EXPECT_TRUE(test.slots.take_error(5).ok());
}

// Two devices, each with a mailbox and a thread of its own, side by side and in any order.
TEST(Mailbox, TwoStreamsDoNotWaitForEachOther) {
  for (uint32_t seed = 1; seed < 5; seed++) {
    emu::reseed(seed);
    std::mt19937 rng(seed);
    const ExpertBytes file(2, 12, 272, seed);
    SlowResolver slow(file, seed, 500), fast(file, seed + 9, 0);
    SlotsUnderTest a(file, 5), b(file, 7);
    ASSERT_TRUE(a.slots.use_resolver(&slow).ok());
    ASSERT_TRUE(b.slots.use_resolver(&fast).ok());
    slow.hold = true;
    const std::vector<int32_t> choice = {3, 1, 11, 8};
    const SlotRound round{0, 12, true};
    for (SlotsUnderTest* test : {&a, &b}) {
      test->choose(choice);
      for (int layer = 0; layer < 2; layer++) {
        ASSERT_EQ(test->enqueue(layer, 4, round, true), cudaSuccess);
        test->model.call(layer, choice, 0, 12, true);
      }
    }
    FT_OK(cudaStreamSynchronize(b.stream.get()));
    EXPECT_EQ(cudaStreamQuery(a.stream.get()), cudaErrorNotReady);
    slow.hold = false;
    for (SlotsUnderTest* test : {&a, &b}) test->check(1, choice, round);
  }
}

TEST(Mailbox, AnEndWhileTheStreamWaits) {
  const ExpertBytes file(3, 8, 64, 7);
  SlowResolver resolver(file, 7, 0);
  resolver.hold = true;
  std::thread later;
  {
    SlotsUnderTest test(file, 4);
    ASSERT_TRUE(test.slots.use_resolver(&resolver).ok());
    test.choose({1, 2});
    for (int layer = 0; layer < 3; layer++) ASSERT_EQ(test.enqueue(layer, 2, {0, 8, true}, true), cudaSuccess);
    while (!resolver.waiting) std::this_thread::yield();
    later = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      resolver.hold = false;
    });
  }  // the first layer is answered, the others fail at once
  later.join();
  EXPECT_EQ(resolver.posts, 1);
  EXPECT_EQ(resolver.releases, 1);
}

TEST(Mailbox, OneSourceOfExperts) {
  const ExpertBytes file(1, 4, 64, 7);
  SlowResolver one(file, 7, 0), other(file, 7, 0);
  SlotsUnderTest test(file, 4);
  EXPECT_EQ(test.enqueue(0, 2, {0, 4, true}, true), cudaErrorInvalidValue);
  EXPECT_TRUE(test.slots.use_resolver(&one).ok());
  EXPECT_TRUE(test.slots.use_resolver(&one).ok());
  EXPECT_EQ(test.slots.use_resolver(&other).code(), StatusCode::kUnsupported);
}

// The protocol without MailboxServer: what a wrong host does.
struct WrongHost {
  ExpertBytes file{1, 8, 64, 8};
  SlotsUnderTest test{file, 4};
  Pinned<MailboxView> box{1};
  Device<uint64_t> extents{8};
  Device<int32_t> count{1};
  Device<ExpertMiss> misses{8};
  FlagWait wait{&box.p->answered, 1};
  AdmissionCall call;

  WrongHost() {
    *box.p = {};
    call = {.layer = 0, .choice = test.choice.p, .entries = 1, .begin = 0, .end = 8};
    call.extents = extents.p, call.miss_count = count.p, call.misses = misses.p, call.mailbox = box.p;
  }
  void admit(int expert) {
    FT_OK(cudaStreamSynchronize(test.stream.get()));
    test.choose({expert});
    FT_OK(launch_admit_experts(test.slots.view(), call, test.stream.get()));
    FT_OK(cudaStreamSynchronize(test.stream.get()));
  }
  void answer(uint32_t to, int expert) {
    box.p->address[0] = reinterpret_cast<uint64_t>(file.of(expert));
    box.p->answer_to = to;
    __atomic_store_n(&box.p->answered, 1, __ATOMIC_RELEASE);
  }
  void gather() {
    FT_OK(StreamValues().wait(test.stream.get(), wait));
    FT_OK(launch_gather_experts(test.slots.view(), call, nullptr, 64, test.stream.get()));
    FT_OK(cudaStreamSynchronize(test.stream.get()));
  }
};

TEST(SeededBugs, ExpertsAnsweredTwice) {
  WrongHost host;
  host.admit(3);
  host.answer(1, 3);
  host.gather();
  EXPECT_NE(host.extents.get()[3], 0u);
  host.admit(6);
  host.answer(1, 3);  // once more
  host.gather();
  EXPECT_EQ(host.box.p->fault, 2u);
  EXPECT_EQ(host.extents.get()[6], 0u) << "the bytes of another expert";
  EXPECT_EQ(from_device(host.test.slots.view().slot_of, 8)[6], -1);
  SlowResolver resolver(host.file, 1, 0);
  MailboxServer server(host.box.p, &resolver);  // takes the post of call 2 for new
  EXPECT_TRUE(server.take_error(1).ok());
  EXPECT_EQ(server.take_error(2).code(), StatusCode::kInternal);
  while (resolver.posts == 0) std::this_thread::yield();
}

TEST(SeededBugs, ExpertsAnsweredNever) {
  FT_EXPECT_DEATH({
    emu::options().stuck_ms = 300;
    WrongHost host;
    host.admit(3);
    host.gather();
  }, "waits for the value 1 at .* which holds 0");
}

}  // namespace
}  // namespace freetoken::cuda
