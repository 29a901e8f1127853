// Outputs do not depend on how the work was scheduled: chunks, layer ranges, preemption, drafts, prefix hits, choices.
#include <gtest/gtest.h>

#include <numeric>

#include "engine/outcomes.h"

namespace freetoken {
namespace {

using namespace freetoken::testing;

struct Family {
  const char* name;
  ModelSpec spec;
};
std::vector<Family> families() { return {{"llama", llama_spec()}, {"moe", moe_spec()}, {"window", window_spec()}}; }

// Requests that share beginnings, so that the prefix cache has something to find in the middle of pages.
std::vector<Request> related_requests(std::mt19937& rng) {
  std::vector<Request> requests = assorted_requests(rng);
  for (size_t i = 0; i + 1 < requests.size(); i += 2) {
    const std::vector<int32_t>& from = requests[i].prompt;
    std::vector<int32_t> prompt(from.begin(), from.begin() + long(1 + rng() % from.size()));
    for (int more = int(rng() % 80); more > 0; more--) prompt.push_back(int32_t(rng() % 131));
    requests[i + 1].prompt = prompt;
  }
  return requests;
}

std::vector<Outcome> run_alone(const Family& family, const TinyWeights& weights, const std::vector<Request>& requests) {
  std::vector<Outcome> alone;
  TinyEngine tiny(family.spec, weights, {.max_rows = 100, .max_running = 1, .eos = {17}, .prefix_cache = false, .drafts = false});
  for (const Request& r : requests) alone.push_back(tiny.run(r));
  tiny.expect_idle();
  return alone;
}

TEST(EngineSchedule, RandomSchedulesGiveTheSameBits) {
  for (const Family& family : families()) {
    const TinyWeights weights = random_weights(family.spec, 61, mixed_formats);
    std::mt19937 rng(7);
    const std::vector<Request> requests = related_requests(rng);
    const std::vector<Outcome> alone = run_alone(family, weights, requests);
    int64_t preemptions = 0, hits = 0, drafts = 0, accepted = 0;
    for (uint64_t seed = 1; seed <= 6; seed++) {
      TinyEngine tiny(family.spec, weights,
                      {.threads = 1 + int(seed % 2), .max_rows = seed % 3 ? 64 : 14, .max_running = seed % 2 ? 14 : 4,
                       .pages = seed % 2 ? 12 : 40, .max_logit_rows = seed % 3 ? 64 : 5, .eos = {17},
                       .prefix_cache = seed != 4, .chaos_seed = seed});
      std::vector<size_t> order(requests.size());
      std::iota(order.begin(), order.end(), 0u);
      for (int round = 0; round < 2; round++) {
        std::shuffle(order.begin(), order.end(), rng);
        std::vector<RequestId> ids(requests.size());
        for (size_t i : order) ids[i] = tiny.submit(requests[i]);
        for (size_t i = 0; i < requests.size(); i++)
          expect_same(tiny.sink->wait(ids[i]), alone[i],
                      std::string(family.name) + ", seed " + std::to_string(seed) + ", request " + std::to_string(i));
      }
      tiny.expect_idle();
      const EngineStats stats = tiny.engine->stats();
      preemptions += stats.preemptions, hits += stats.cached_prompt_tokens;
      drafts += stats.draft_tokens, accepted += stats.accepted_draft_tokens;
    }
    EXPECT_GT(preemptions, 50) << family.name;
    EXPECT_GT(hits, 100) << family.name;
    EXPECT_GT(drafts, 100) << family.name;
    EXPECT_GT(accepted, 10) << family.name;
  }
}

// Pages for 30 % of what 64 requests want at once.
TEST(EngineSchedule, MemoryPressureChangesNoOutput) {
  const Family family{"moe", moe_spec()};
  const TinyWeights weights = random_weights(family.spec, 67, mixed_formats);
  std::mt19937 rng(11);
  std::vector<Request> requests;
  int pages = 0;
  for (int i = 0; i < 64; i++) {
    Request r = make_request(random_prompt(20 + int(rng() % 100), rng), 40 + int(rng() % 80), i % 2 ? 1.0f : 0.0f);
    r.sampling.seed = uint64_t(i);
    pages += (int(r.prompt.size()) + r.max_tokens + 63) / 64;
    requests.push_back(std::move(r));
  }
  const std::vector<Outcome> alone = run_alone(family, weights, requests);
  TinyEngine tiny(family.spec, weights, {.max_rows = 96, .max_running = 64, .pages = pages * 3 / 10, .eos = {17}});
  std::vector<RequestId> ids;
  for (const Request& r : requests) ids.push_back(tiny.submit(r));
  for (size_t i = 0; i < ids.size(); i++) expect_same(tiny.sink->wait(ids[i]), alone[i], "request " + std::to_string(i));
  EXPECT_GT(tiny.engine->stats().preemptions, 0);
  tiny.expect_idle();
}

TEST(EngineSchedule, ASecondRunHitsThePrefixCache) {
  for (const Family& family : families()) {
    const TinyWeights weights = random_weights(family.spec, 71, mixed_formats);
    std::mt19937 rng(13);
    TinyEngine tiny(family.spec, weights, {}), none(family.spec, weights, {.prefix_cache = false});
    for (int prompt : {1, 2, 63, 64, 65, 130, 300}) {
      Request r = make_request(random_prompt(prompt, rng), 12);
      r.logits = LogitsMode::kSampled;
      const Outcome first = tiny.run(r), second = tiny.run(r), without = none.run(r);
      expect_same(first, second, "hit");
      expect_same(first, without, "no cache");
      EXPECT_LE(first.cached_tokens, 2) << "what it happens to share with the prompts before";
      EXPECT_EQ(second.cached_tokens, prompt - 1) << family.name;
      EXPECT_EQ(none.run(r).cached_tokens, 0);
    }
  }
}

// Prompts of several windows that share a beginning which ends anywhere: before, in and behind the last window.
TEST(EngineSchedule, WindowsHitInTheMiddleOfLongPrompts) {
  const ModelSpec spec = window_spec();  // 24 and 100 positions
  const TinyWeights weights = random_weights(spec, 97, mixed_formats);
  std::mt19937 rng(19);
  TinyEngine tiny(spec, weights, {.pages = 200}), none(spec, weights, {.prefix_cache = false});
  const std::vector<int32_t> base = random_prompt(520, rng);
  tiny.run(make_request(base, 4));
  int64_t most = 0;
  for (int shared : {7, 64, 90, 128, 200, 333, 448, 500, 519}) {
    Request r = make_request({base.begin(), base.begin() + shared}, 8);
    for (int i = 0; i < 40; i++) r.prompt.push_back(int32_t(rng() % 131));
    r.logits = LogitsMode::kSampled;
    for (int again = 0; again < 2; again++) {
      const Outcome hit = tiny.run(r);
      expect_same(hit, none.run(r), std::to_string(shared) + " tokens shared");
      most = std::max<int64_t>(most, hit.cached_tokens);
      if (again) {
        EXPECT_EQ(hit.cached_tokens, int(r.prompt.size()) - 1) << "its own last window is there";
      }
    }
  }
  EXPECT_GT(most, 520);
  tiny.expect_idle();
}

// Choice i draws as a request of its own with this index would; choice 0 as a request with n = 1.
TEST(EngineSchedule, ChoicesShareThePromptAndDrawApart) {
  for (const Family& family : families())
    for (bool prefix_cache : {true, false}) {
      const TinyWeights weights = random_weights(family.spec, 73, mixed_formats);
      std::mt19937 rng(17);
      TinyEngine tiny(family.spec, weights, {.max_running = 3, .prefix_cache = prefix_cache});
      for (int prompt : {1, 64, 100}) {
        Request r = make_request(random_prompt(prompt, rng), 20, 1.0f);
        r.sampling.seed = 5;
        const Outcome one = tiny.run(r);
        r.n = 5;
        const RequestId id = tiny.submit(r);
        std::vector<Outcome> choices;
        for (int c = 0; c < 5; c++) choices.push_back(tiny.sink->wait(id, c));
        expect_same(choices[0], one, "choice 0");
        for (int c = 1; c < 5; c++) {
          EXPECT_EQ(choices[size_t(c)].tokens.size(), 20u);
          EXPECT_NE(choices[size_t(c)].tokens, one.tokens) << "other draws";
        }
        TinyEngine chaotic(family.spec, weights, {.max_running = 4, .pages = 12, .prefix_cache = prefix_cache, .chaos_seed = 3});
        const RequestId again = chaotic.submit(r);
        for (int c = 0; c < 5; c++) expect_same(chaotic.sink->wait(again, c), choices[size_t(c)], "choice " + std::to_string(c));
        chaotic.expect_idle();
      }
      tiny.expect_idle();
    }
}

TEST(EngineSchedule, PriorityGoesFirstAndPreempts) {
  const ModelSpec spec = llama_spec();
  const TinyWeights weights = random_weights(spec, 79, mixed_formats);
  TinyEngine tiny(spec, weights, {.max_running = 1});
  std::vector<RequestId> order;
  std::atomic<bool> submitted{false};
  tiny.sink->hook = [&](const Event& e) {
    if (e.finish != FinishReason::kNone) order.push_back(e.request);
    while (e.completion_tokens == 3 && !submitted) std::this_thread::yield();
  };
  Request low = make_request({1, 2, 3}, 300), urgent = make_request({4, 5}, 10), middle = make_request({6, 7}, 5);
  low.priority = 5, urgent.priority = -1, middle.priority = 3;
  const Outcome expected = TinyEngine(spec, weights, {}).run(low);
  const RequestId a = tiny.submit(low);
  while (tiny.engine->stats().completion_tokens < 3) std::this_thread::yield();
  const RequestId b = tiny.submit(middle), c = tiny.submit(urgent);
  submitted = true;
  for (RequestId id : {a, b, c}) tiny.sink->wait(id);
  EXPECT_EQ(order.back(), a) << "what runs makes way for what is more urgent";
  expect_same(tiny.sink->now(a), expected, "preempted");
  EXPECT_GE(tiny.engine->stats().preemptions, 1);
}

TEST(EngineSchedule, TimeoutsEndWaitingAndRunningRequests) {
  const ModelSpec spec = llama_spec();
  const TinyWeights weights = random_weights(spec, 83, mixed_formats);
  TinyEngine tiny(spec, weights, {.max_running = 1});
  Request endless = make_request({1, 2, 3}, 600), queued = make_request({4}, 5);
  endless.timeout_us = 60'000, queued.timeout_us = 1'000;
  const RequestId a = tiny.submit(endless), b = tiny.submit(queued);
  const Outcome waiting = tiny.sink->wait(b), running = tiny.sink->wait(a);
  EXPECT_EQ(waiting.finish, FinishReason::kTimeout);
  EXPECT_TRUE(waiting.tokens.empty());
  if (running.finish != FinishReason::kLength) {  // a fast machine may be done before
    EXPECT_EQ(running.finish, FinishReason::kTimeout);
    EXPECT_FALSE(running.error.ok());
  }
  tiny.expect_idle();
  Request relaxed = make_request({4}, 5);
  relaxed.timeout_us = 60'000'000;
  EXPECT_EQ(tiny.run(relaxed).finish, FinishReason::kLength);
}

TEST(EngineSchedule, AFullQueueRefuses) {
  const ModelSpec spec = llama_spec();
  const TinyWeights weights = random_weights(spec, 89, mixed_formats);
  TinyEngine tiny(spec, weights, {.max_running = 1, .max_queued = 3});
  tiny.submit(make_request({1, 2, 3}, 600));
  while (tiny.engine->stats().running == 0) std::this_thread::yield();
  Request three = make_request({1}, 600);
  three.n = 3;
  const RequestId id = tiny.submit(three);
  RequestId refused = 0;
  const Status status = tiny.engine->submit(make_request({1}, 1), &refused);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("3 of 3"), std::string::npos) << status.message();
  tiny.engine->cancel(id);
  for (int c = 0; c < 3; c++) EXPECT_EQ(tiny.sink->wait(id, c).finish, FinishReason::kCancelled);
  EXPECT_TRUE(tiny.engine->submit(make_request({1}, 1), &refused).ok());
}

}  // namespace
}  // namespace freetoken
