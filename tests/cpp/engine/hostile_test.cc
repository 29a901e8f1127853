// Unlucky requests: at the limits of pool and step, cancelled in any phase, with nothing left to draw.
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "engine/outcomes.h"

namespace freetoken {
namespace {

using namespace freetoken::testing;

class EngineHostile : public ::testing::Test {
 protected:
  EngineHostile() : spec(llama_spec()), weights(random_weights(spec, 97, mixed_formats)) {}
  Outcome alone(const Request& request) {
    TinyEngine tiny(spec, weights, {.max_running = 1, .pages = 12, .prefix_cache = false, .drafts = false});
    return tiny.run(request);
  }
  ModelSpec spec;
  TinyWeights weights;
  std::mt19937 rng{3};
};

// The pool holds exactly what the request needs, with and without pages of others in the cache.
TEST_F(EngineHostile, APoolOfExactlyTheRequest) {
  for (const bool cache : {true, false})
    for (const int pages : {1, 2, 3})
      for (const int prompt : {1, 63, 64, 65, 127, 128, 64 * pages - 1}) {
        if (prompt >= 64 * pages) continue;
        TinyEngine tiny(spec, weights,
                        {.max_rows = 40, .max_running = 4, .pages = pages, .max_sequence_tokens = 64 * pages,
                         .prefix_cache = cache});
        Request r = make_request(random_prompt(prompt, rng), 64 * pages - prompt, 1.0f);
        r.sampling.seed = 4, r.logits = LogitsMode::kSampled, r.prompt_logprobs = true;
        const Outcome expected = alone(r);
        std::vector<RequestId> ids;
        for (int i = 0; i < 4; i++) ids.push_back(tiny.submit(r));
        const std::string what = std::to_string(pages) + " pages, prompt of " + std::to_string(prompt);
        for (RequestId id : ids) expect_same(tiny.sink->wait(id), expected, what);
        tiny.expect_idle();
        RequestId id = 0;
        r.max_tokens++;
        EXPECT_EQ(tiny.engine->submit(r, &id).code(), StatusCode::kInvalidArgument);
      }
}

TEST_F(EngineHostile, ManyChoicesInTwoPages) {
  for (const int max_running : {1, 3, 16})
    for (const int prompt : {1, 2, 64, 65, 100}) {
      SCOPED_TRACE(std::to_string(max_running) + " running, prompt of " + std::to_string(prompt));
      TinyEngine tiny(spec, weights,
                      {.max_rows = 16, .max_running = max_running, .pages = 2, .max_sequence_tokens = 128});
      TinyEngine roomy(spec, weights, {.max_running = 1, .prefix_cache = false, .drafts = false});
      Request r = make_request(random_prompt(prompt, rng), 4, 1.0f);
      r.sampling.seed = 4, r.n = 128;
      const RequestId id = tiny.submit(r), other = roomy.submit(r);
      for (int c = 0; c < r.n; c++)
        expect_same(tiny.sink->wait(id, c), roomy.sink->wait(other, c), "choice " + std::to_string(c));
      tiny.expect_idle();
    }
}

TEST_F(EngineHostile, OneRowAndOneRequestAtATime) {
  TinyEngine tiny(spec, weights, {.max_rows = 1, .max_running = 1, .max_logit_rows = 1});
  for (int prompt : {1, 64, 70}) {
    Request r = make_request(random_prompt(prompt, rng), 9);
    r.logits = LogitsMode::kAll, r.prompt_logprobs = true, r.logprobs = 2;
    expect_same(tiny.run(r), alone(r), "one row");
    r.n = 3;
    const RequestId id = tiny.submit(r);
    for (int c = 0; c < 3; c++) tiny.sink->wait(id, c);
  }
  tiny.expect_idle();
}

// Every choice that a request asks for takes a place in the queue: more than there are will never fit.
TEST_F(EngineHostile, MoreChoicesThanTheQueueHasPlacesIsTheRequestsFault) {
  TinyEngine tiny(spec, weights, {.max_queued = 8});
  Request r = make_request({1, 2}, 3);
  r.n = 9;
  RequestId id = 0;
  const Status status = tiny.engine->submit(r, &id);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << "not a matter of trying again";
  EXPECT_NE(status.message().find("9"), std::string::npos) << status.message();
  r.n = 8;
  id = tiny.submit(r);
  for (int c = 0; c < 8; c++) EXPECT_EQ(tiny.sink->wait(id, c).finish, FinishReason::kLength);
}

TEST_F(EngineHostile, NothingLeftToDrawIsAnErrorOfTheRequest) {
  for (const bool end_tokens : {false, true}) {
    TinyEngine tiny(spec, weights, {.eos = {17}});
    Request r = make_request({1, 2, 3}, 6, 1.0f);
    for (int32_t id = 0; id < spec.vocab; id++)
      if (!end_tokens || id != 17) r.sampling.logit_bias.push_back({id, -100.0f});
    r.min_tokens = end_tokens ? 3 : 0;
    r.stop_token_ids = {17, 17, 17};
    r.n = 3;
    const RequestId id = tiny.submit(r);
    for (int c = 0; c < 3; c++) {
      const Outcome o = tiny.sink->wait(id, c);
      EXPECT_EQ(o.finish, FinishReason::kError);
      EXPECT_NE(o.error.message().find("logit_bias"), std::string::npos) << o.error.message();
    }
    EXPECT_EQ(tiny.run(make_request({1, 2, 3}, 6)).finish, FinishReason::kLength);
    tiny.expect_idle();
  }
}

TEST_F(EngineHostile, AnUrgentStreamOfRequestsStarvesNobodyForever) {
  TinyEngine tiny(spec, weights, {.max_running = 3, .pages = 6});
  std::vector<Request> requests;
  for (int i = 0; i < 40; i++) {
    Request r = make_request(random_prompt(1 + int(rng() % 130), rng), 10 + int(rng() % 60), i % 2 ? 1.0f : 0.0f);
    r.priority = int(rng() % 5) - 2, r.sampling.seed = uint64_t(i);
    r.n = 1 + int(rng() % 3);
    requests.push_back(std::move(r));
  }
  TinyEngine roomy(spec, weights, {.max_running = 1, .prefix_cache = false, .drafts = false});
  std::vector<RequestId> ids, alone_ids;
  for (const Request& r : requests) {
    ids.push_back(tiny.submit(r)), alone_ids.push_back(roomy.submit(r));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (size_t i = 0; i < ids.size(); i++)
    for (int c = 0; c < requests[i].n; c++)
      expect_same(tiny.sink->wait(ids[i], c), roomy.sink->wait(alone_ids[i], c),
                  std::to_string(i) + ", choice " + std::to_string(c));
  tiny.expect_idle();
}

// Windows below a page and above the context, in pools that hold little more than the window.
TEST_F(EngineHostile, WindowsOfAnySize) {
  for (const int window : {1, 2, 17, 63, 64, 65, 1000}) {
    ModelSpec windowed = window_spec();
    for (LayerSpec& layer : windowed.layers) layer.sublayers[0].attention.window = window;
    const TinyWeights own = random_weights(windowed, 101, mixed_formats);
    TinyEngine roomy(windowed, own, {.max_running = 1, .prefix_cache = false, .drafts = false});
    for (uint64_t seed : {0, 1, 2}) {
      TinyEngine tiny(windowed, own, {.max_rows = 48, .max_running = 5, .pages = 7, .chaos_seed = seed});
      std::vector<Request> requests;
      for (int i = 0; i < 8; i++) {
        Request r = make_request(random_prompt(1 + int(rng() % 200), rng), 1 + int(rng() % 60), i % 2 ? 1.0f : 0.0f);
        r.sampling.seed = uint64_t(i), r.n = 1 + i % 3, r.prompt_logprobs = i % 4 == 1;
        requests.push_back(r), requests.push_back(r);
      }
      std::vector<RequestId> ids, others;
      for (const Request& r : requests) ids.push_back(tiny.submit(r)), others.push_back(roomy.submit(r));
      for (size_t i = 0; i < ids.size(); i++)
        for (int c = 0; c < requests[i].n; c++)
          expect_same(tiny.sink->wait(ids[i], c), roomy.sink->wait(others[i], c),
                      "window " + std::to_string(window) + ", seed " + std::to_string(seed) + ", " + std::to_string(i));
      tiny.expect_idle();
    }
  }
}

// Cancels and deadlines in every phase, from other threads and from the events, under random schedules.
TEST_F(EngineHostile, CancelsAndDeadlinesAnywhere) {
  std::vector<Request> requests;
  for (Request& r : assorted_requests(rng)) requests.push_back(std::move(r));
  std::vector<Outcome> expected;
  TinyEngine roomy(spec, weights, {.max_running = 1, .prefix_cache = false, .drafts = false});
  for (const Request& r : requests) expected.push_back(roomy.run(r));
  for (const uint64_t seed : {0, 5, 6, 7}) {
    TinyEngine tiny(spec, weights, {.threads = 1 + int(seed % 2), .max_rows = 32, .max_running = 4, .pages = 10,
                                    .prefix_cache = seed != 6, .chaos_seed = seed});
    std::atomic<uint32_t> events{0};
    std::set<RequestId> doomed;
    std::mutex mutex;
    tiny.sink->hook = [&](const Event& e) {
      if (++events % 5) return;
      const std::lock_guard lock(mutex);
      if (doomed.count(e.request)) tiny.engine->cancel(e.request);
    };
    struct Sent {
      RequestId id;
      size_t kind;
      int n;
      bool hurt;
    };
    std::vector<Sent> sent;
    for (int i = 0; i < 90; i++) {
      const size_t kind = rng() % requests.size();
      Request r = requests[kind];
      const bool hurt = rng() % 3 == 0;
      if (r.max_tokens > 0 && rng() % 3 == 0) r.n = 1 + int(rng() % 4);
      r.priority = int(rng() % 3);
      if (hurt && rng() % 2) r.timeout_us = 1 + int64_t(rng() % 40'000);
      const int n = r.n;
      const RequestId id = tiny.submit(std::move(r));
      sent.push_back({id, kind, n, hurt});
      if (hurt && rng() % 2) {
        const std::lock_guard lock(mutex);
        doomed.insert(id);
      }
      if (rng() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(rng() % 3000));
      const Sent& some = sent[rng() % sent.size()];
      if (some.hurt) tiny.engine->cancel(some.id);
    }
    int ended_early = 0;
    for (const Sent& s : sent)
      for (int c = 0; c < s.n; c++) {
        const Outcome o = tiny.sink->wait(s.id, c);
        EXPECT_EQ(o.finishes, 1);
        ended_early += o.finish == FinishReason::kCancelled || o.finish == FinishReason::kTimeout;
        if (!s.hurt && c == 0) expect_same(o, expected[s.kind], "kind " + std::to_string(s.kind));
        EXPECT_TRUE(s.hurt || o.finish == FinishReason::kStop || o.finish == FinishReason::kLength);
      }
    EXPECT_GT(ended_early, 5);
    tiny.expect_idle();
    for (size_t kind = 0; kind < 4; kind++) expect_same(tiny.run(requests[kind]), expected[kind], "afterwards");
  }
}

}  // namespace
}  // namespace freetoken
