// Cancellation, shutdown, failure, and many threads at once.
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "engine/faulty_ops.h"
#include "engine/tiny_engine.h"

namespace freetoken {
namespace {

using namespace freetoken::testing;

class EngineLifecycle : public ::testing::Test {
 protected:
  EngineLifecycle() : spec(llama_spec()), weights(random_weights(spec, 71, mixed_formats)) {}
  void await(const std::function<bool()>& condition) {
    for (int i = 0; i < 60000 && !condition(); i++) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_TRUE(condition());
  }
  ModelSpec spec;
  TinyWeights weights;
  std::mt19937 rng{1};
};

TEST_F(EngineLifecycle, CancelInTheQueue) {
  TinyEngine tiny(spec, weights, {.max_running = 1});
  const RequestId first = tiny.submit(make_request(random_prompt(10, rng), 400));
  await([&] { return tiny.engine->stats().running == 1; });
  const RequestId second = tiny.submit(make_request({1, 2, 3}, 5)), third = tiny.submit(make_request({4}, 3));
  tiny.engine->cancel(second);
  const Outcome o = tiny.sink->wait(second);
  EXPECT_EQ(o.finish, FinishReason::kCancelled);
  EXPECT_TRUE(o.tokens.empty());
  EXPECT_EQ(o.events, 1);
  EXPECT_EQ(o.prompt_tokens, 3);
  tiny.engine->cancel(first);
  EXPECT_EQ(tiny.sink->wait(first).finish, FinishReason::kCancelled);
  EXPECT_EQ(tiny.sink->wait(third).finish, FinishReason::kLength);
  tiny.expect_idle();
}

TEST_F(EngineLifecycle, CancelInThePrefill) {
  TinyEngine tiny(spec, weights, {.max_rows = 1, .max_running = 1});
  const RequestId id = tiny.submit(make_request(random_prompt(600, rng), 20));
  await([&] { return tiny.engine->stats().steps > 5; });
  EXPECT_LT(tiny.engine->stats().kv_pages_used, 10) << "pages come as they are needed";
  tiny.engine->cancel(id);
  const Outcome o = tiny.sink->wait(id);
  EXPECT_EQ(o.finish, FinishReason::kCancelled);
  EXPECT_EQ(o.completion_tokens, 0);
  tiny.expect_idle();
}

// From the sink itself, after the third token; the neighbour's output does not change.
TEST_F(EngineLifecycle, CancelInTheDecode) {
  const Request other = make_request({9, 8, 7}, 40);
  const Outcome expected = TinyEngine(spec, weights, {}).run(other);
  TinyEngine tiny(spec, weights, {});
  std::atomic<RequestId> victim{0};
  tiny.sink->hook = [&](const Event& e) {
    if (e.request == victim && e.completion_tokens == 3) tiny.engine->cancel(e.request);
  };
  const RequestId neighbour = tiny.submit(other);
  victim = 2;
  const RequestId id = tiny.submit(make_request({1, 2, 3}, 300));
  ASSERT_EQ(id, victim);
  const Outcome o = tiny.sink->wait(id);
  EXPECT_EQ(o.finish, FinishReason::kCancelled);
  EXPECT_EQ(o.completion_tokens, 3);
  EXPECT_EQ(tiny.sink->wait(neighbour).tokens, expected.tokens);
  tiny.expect_idle();
}

TEST_F(EngineLifecycle, CancellingWhatIsNotThereDoesNothing) {
  TinyEngine tiny(spec, weights, {});
  tiny.engine->cancel(12345);
  const RequestId id = tiny.submit(make_request({1}, 2));
  EXPECT_EQ(tiny.sink->wait(id).finish, FinishReason::kLength);
  for (int i = 0; i < 3; i++) tiny.engine->cancel(id);
  EXPECT_EQ(tiny.run(make_request({1}, 2)).finish, FinishReason::kLength);
  EXPECT_EQ(tiny.sink->now(id).finishes, 1);
}

TEST_F(EngineLifecycle, PagesAndPlacesAreFreeWhenTheEndIsHeardOf) {
  TinyEngine tiny(spec, weights, {});
  EngineStats at_end;
  tiny.sink->hook = [&](const Event& e) {
    if (e.finish != FinishReason::kNone) at_end = tiny.engine->stats();
  };
  tiny.run(make_request({1, 2}, 3));
  EXPECT_EQ(at_end.kv_pages_used, at_end.kv_pages_cached);
  EXPECT_EQ(at_end.running, 0);
  const EngineStats stats = tiny.engine->stats();
  EXPECT_EQ(stats.prompt_tokens, 2);
  EXPECT_EQ(stats.completion_tokens, 3);
  EXPECT_EQ(stats.kv_pages_total, 64);
  EXPECT_EQ(stats.vocab, 131);
  EXPECT_EQ(stats.threads, 1);
  EXPECT_EQ(stats.isa, isa_name(supported_isa_levels().back()));
  EXPECT_EQ(stats.weight_bytes > 0, true);
  EXPECT_TRUE(tiny.engine->health().ok());
}

TEST_F(EngineLifecycle, ShutdownCancelsEverything) {
  for (int round = 0; round < 3; round++) {
    TinyEngine tiny(spec, weights, {.threads = 1 + round, .max_running = 2});
    std::vector<RequestId> ids;
    for (int i = 0; i < 6; i++) ids.push_back(tiny.submit(make_request(random_prompt(5, rng), 500)));
    if (round) await([&] { return tiny.engine->stats().running == 2; });
    std::thread other([&] { tiny.engine->shutdown(); });  // from two threads at once
    tiny.engine->shutdown();
    for (RequestId id : ids) {
      const Outcome o = tiny.sink->now(id);
      EXPECT_EQ(o.finish, FinishReason::kCancelled);
      EXPECT_EQ(o.finishes, 1);
    }
    other.join();
    tiny.expect_idle();
    RequestId id = 0;
    EXPECT_EQ(tiny.engine->submit(make_request({1}, 1), &id).code(), StatusCode::kCancelled);
    tiny.engine->cancel(ids[0]);
    tiny.engine->shutdown();
    EXPECT_TRUE(tiny.engine->health().ok());
  }
}

struct FaultyEngine {
  FaultyEngine(const ModelSpec& spec, const TinyWeights& weights, EngineSetup setup)
      : faults(std::make_shared<FaultyOps::Faults>()), tiny(spec, weights, wrapped(setup)) {}
  EngineSetup wrapped(EngineSetup setup) {
    setup.wrap = [f = faults](std::unique_ptr<Ops> ops) { return std::make_unique<FaultyOps>(std::move(ops), f); };
    return setup;
  }
  std::shared_ptr<FaultyOps::Faults> faults;
  TinyEngine tiny;
};

TEST_F(EngineLifecycle, AFailedStepEndsItsRequestsOnly) {
  FaultyEngine faulty(spec, weights, {.max_running = 2});
  TinyEngine& tiny = faulty.tiny;
  const Outcome expected = tiny.run(make_request({1, 2, 3}, 10));
  faulty.faults->fail_step = true;
  const Outcome o = tiny.run(make_request({1, 2, 3}, 10));
  EXPECT_EQ(o.finish, FinishReason::kError);
  EXPECT_EQ(o.error.code(), StatusCode::kIoError);
  EXPECT_EQ(o.error.message(), "the disk is gone");
  tiny.expect_idle();
  EXPECT_TRUE(tiny.engine->health().ok());
  EXPECT_EQ(tiny.run(make_request({1, 2, 3}, 10)).tokens, expected.tokens);
}

// A chunk of a prompt wants no logits, so nothing is waited for on that account: the failure still belongs to this
// step.
TEST_F(EngineLifecycle, AFailedStepWithoutLogitsEndsItsOwnRequests) {
  FaultyEngine faulty(spec, weights, {.max_rows = 8, .max_running = 1});
  TinyEngine& tiny = faulty.tiny;
  faulty.faults->fail_step = true;
  const RequestId broken = tiny.submit(make_request(random_prompt(500, rng), 5));
  const Outcome o = tiny.sink->wait(broken);
  EXPECT_EQ(o.finish, FinishReason::kError);
  EXPECT_EQ(tiny.engine->stats().steps, 1) << "found in the step that failed";
  EXPECT_EQ(tiny.run(make_request({1, 2, 3}, 4)).finish, FinishReason::kLength);
}

// The engine thread dies with requests running, queued and not yet looked at: each hears of it once, and the sink may
// cancel while it is told.
TEST_F(EngineLifecycle, AnExceptionEndsTheEngineNotTheProcess) {
  FaultyEngine faulty(spec, weights, {.max_running = 1});
  TinyEngine& tiny = faulty.tiny;
  tiny.sink->hook = [&](const Event& e) {
    if (e.finish == FinishReason::kError) tiny.engine->cancel(e.request);
  };
  std::vector<RequestId> ids = {tiny.submit(make_request({1, 2}, 600)), tiny.submit(make_request({3}, 5))};
  await([&] { return tiny.engine->stats().running == 1; });
  faulty.faults->hold_step = true;
  await([&] { return faulty.faults->held.load(); });
  for (int i = 0; i < 3; i++) ids.push_back(tiny.submit(make_request({4, 5, 6}, 5)));
  faulty.faults->throw_step = true;
  faulty.faults->hold_step = false;
  for (RequestId id : ids) {
    const Outcome o = tiny.sink->wait(id);
    EXPECT_EQ(o.finish, FinishReason::kError);
    EXPECT_EQ(o.error.code(), StatusCode::kInternal);
    EXPECT_EQ(o.finishes, 1);
    EXPECT_GT(o.prompt_tokens, 0);
  }
  EXPECT_EQ(tiny.engine->health().code(), StatusCode::kInternal);
  EXPECT_EQ(tiny.engine->stats().waiting, 0);
  tiny.expect_idle();
  RequestId id = 0;
  EXPECT_EQ(tiny.engine->submit(make_request({1}, 1), &id).code(), StatusCode::kInternal);
  tiny.engine->shutdown();
}

// Submits, cancels, statistics and a shutdown from many threads. Meant for the thread sanitizer too.
TEST_F(EngineLifecycle, ManyThreads) {
  const Request probe = make_request({11, 12, 13, 14}, 12);
  const Outcome expected = TinyEngine(spec, weights, {}).run(probe);
  TinyEngine tiny(spec, weights, {.threads = 2, .max_rows = 24, .max_running = 6, .pages = 20});
  std::atomic<int> cancelled{0}, finished{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; t++)
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 25; i++) {
        if (random() % 3 == 0) {
          EXPECT_EQ(tiny.run(probe).tokens, expected.tokens);
          continue;
        }
        Request r = make_request(random_prompt(1 + int(random() % 90), random), 1 + int(random() % 40), 1.0f);
        if (random() % 4 == 0) r.stop = {"a"};
        const RequestId id = tiny.submit(std::move(r));
        for (int spins = int(random() % 2000); spins-- > 0;) std::this_thread::yield();
        if (random() % 2) tiny.engine->cancel(id);
        const EngineStats stats = tiny.engine->stats();
        EXPECT_LE(stats.running, 6);
        EXPECT_LE(stats.kv_pages_used, 20);
        const FinishReason finish = tiny.sink->wait(id).finish;
        (finish == FinishReason::kCancelled ? cancelled : finished)++;
        EXPECT_NE(finish, FinishReason::kError);
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_GT(cancelled + finished, 0);
  tiny.expect_idle();
  // And a shutdown in the middle of submissions: each either refused or told of its end.
  std::mutex mutex;
  std::set<RequestId> accepted;
  threads.clear();
  for (uint32_t t = 0; t < 3; t++)
    threads.emplace_back([&] {
      for (int i = 0; i < 200; i++) {
        RequestId id = 0;
        const Status status = tiny.engine->submit(make_request({1, 2}, 50), &id);
        if (!status.ok()) {
          EXPECT_EQ(status.code(), StatusCode::kCancelled);
          return;
        }
        const std::lock_guard lock(mutex);
        accepted.insert(id);
      }
    });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  tiny.engine->shutdown();
  for (std::thread& t : threads) t.join();
  for (RequestId id : accepted) EXPECT_EQ(tiny.sink->now(id).finishes, 1) << id;
  tiny.expect_idle();
}

}  // namespace
}  // namespace freetoken
