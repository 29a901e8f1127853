// An EngineLoop on a tiny model (on the device that FREETOKEN_TEST_DEVICE names), and a sink that keeps what every request was told.
#pragma once
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "engine/engine_loop.h"
#include "model/tiny_spec.h"
#include "model/tiny_weights.h"
#include "ops/test_device.h"

namespace freetoken::testing {

struct Outcome {
  std::vector<int32_t> tokens;
  std::string text, stop_match;
  std::vector<TokenLogprob> logprobs, prompt_logprobs;
  std::vector<float> logits;
  FinishReason finish = FinishReason::kNone;
  Status error;
  int prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0, events = 0, finishes = 0;
};

class CollectingSink : public EventSink {
 public:
  void on_event(Event&& e) override {
    if (hook) hook(e);
    const std::lock_guard lock(mutex_);
    Outcome& o = outcomes_[{e.request, e.choice}];
    EXPECT_EQ(o.finishes, 0) << "an event after the last one";
    o.events++;
    o.tokens.insert(o.tokens.end(), e.tokens.begin(), e.tokens.end());
    o.text += e.text;
    o.logprobs.insert(o.logprobs.end(), e.logprobs.begin(), e.logprobs.end());
    EXPECT_TRUE(e.prompt_logprobs.empty() || o.prompt_logprobs.empty()) << "prompt log-probabilities come once";
    o.prompt_logprobs.insert(o.prompt_logprobs.end(), e.prompt_logprobs.begin(), e.prompt_logprobs.end());
    o.logits.insert(o.logits.end(), e.logits.begin(), e.logits.end());
    o.prompt_tokens = e.prompt_tokens;
    o.cached_tokens = e.cached_tokens;
    EXPECT_GE(e.completion_tokens, o.completion_tokens);
    o.completion_tokens = e.completion_tokens;
    EXPECT_EQ(o.completion_tokens, int(o.tokens.size()));
    if (e.finish == FinishReason::kNone) return;
    o.finish = e.finish, o.stop_match = e.stop_match, o.error = e.error;
    o.finishes++;
    changed_.notify_all();
  }
  void on_step_end() override { steps++; }

  Outcome wait(RequestId id, int choice = 0) {
    std::unique_lock lock(mutex_);
    Outcome& o = outcomes_[{id, choice}];
    const bool done = changed_.wait_for(lock, std::chrono::seconds(60), [&] { return o.finishes > 0; });
    EXPECT_TRUE(done) << "request " << id << " never ended";
    return o;
  }
  Outcome now(RequestId id, int choice = 0) {
    const std::lock_guard lock(mutex_);
    return outcomes_[{id, choice}];
  }

  std::function<void(const Event&)> hook;  // on the engine thread
  std::atomic<int> steps{0};

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<RequestId, int>, Outcome> outcomes_;
};

// Two letters an id; then pieces of a character, control tokens, and ids that are never sampled.
inline Vocab tiny_vocab(int size, bool ascii_only = false) {
  Vocab vocab;
  for (int i = 0; i < size; i++) {
    std::string bytes = {char('a' + i % 26), char('a' + i / 26)};
    uint8_t flags = 0;
    if (i >= size - 3) flags = Vocab::kUnused;
    else if (i >= size - 6) flags = Vocab::kSpecial, bytes = "<" + bytes + ">";
    else if (i >= size - 9 && !ascii_only) bytes = std::string("\xe2\x82\xac").substr(size_t(i - (size - 9)), 1);
    vocab.bytes.push_back(bytes);
    vocab.flags.push_back(flags);
  }
  return vocab;
}

struct EngineSetup {
  int threads = 1, max_rows = 64, max_running = 4, pages = 64, max_sequence_tokens = 640, max_logit_rows = 64;
  bool float32 = false;
  DType kv_dtype = DType::kBF16;
  std::vector<int32_t> eos = {};
  bool ascii_only = false;
  int64_t max_itl_us = 500'000;
  bool prefix_cache = true, drafts = true;
  int max_queued = 1024;
  uint64_t chaos_seed = 0;
  DeviceKind device = device_from_environment();
  std::function<std::unique_ptr<Ops>(std::unique_ptr<Ops>)> wrap;  // puts another Ops before the device's
};

class TinyEngine {
 public:
  TinyEngine(const ModelSpec& spec, const TinyWeights& weights, const EngineSetup& setup)
      : sink(std::make_shared<CollectingSink>()) {
    EngineParts parts;
    parts.vocab = tiny_vocab(spec.vocab, setup.ascii_only);
    std::vector<uint8_t> usable;
    for (uint8_t flags : parts.vocab.flags) usable.push_back(!(flags & Vocab::kUnused));
    parts.ops = make_device({.kind = setup.device, .threads = setup.threads, .float32 = setup.float32}, usable);
    weights.fill(*parts.ops);
    if (setup.wrap) parts.ops = setup.wrap(std::move(parts.ops));
    auto model =
        Model::create(spec, *parts.ops, {.max_rows = setup.max_rows,
                                                  .max_sequences = setup.max_running,
                                                  .sampler_slots = setup.max_running,
                                                  .max_logit_rows = setup.max_logit_rows,
                                                  .kv_dtype = setup.kv_dtype});
    EXPECT_TRUE(model.ok()) << model.status().message();
    parts.model = std::move(*model);
    const std::vector<int32_t> pages(parts.model->kv_layout().groups.size(), setup.pages);
    EXPECT_TRUE(parts.ops->allocate_kv(parts.model->kv_layout().groups, pages).ok());
    parts.eos_token_ids = setup.eos;
    parts.limits = {.max_running = setup.max_running,
                    .max_rows = setup.max_rows,
                    .max_itl_us = setup.max_itl_us,
                    .units = parts.model->units(),
                    .chaos_seed = setup.chaos_seed};
    parts.kv = {.groups = parts.model->kv_layout().groups, .pages = pages, .prefix_cache = setup.prefix_cache};
    parts.max_queued = setup.max_queued;
    parts.drafts = setup.drafts;
    parts.max_logit_rows = setup.max_logit_rows;
    parts.max_sequence_tokens = setup.max_sequence_tokens;
    parts.sink = sink;
    engine = std::make_unique<EngineLoop>(std::move(parts));
  }

  RequestId submit(Request request) {
    RequestId id = 0;
    const Status status = engine->submit(std::move(request), &id);
    EXPECT_TRUE(status.ok()) << status.message();
    return id;
  }
  Outcome run(Request request) { return sink->wait(submit(std::move(request))); }

  void expect_idle() {
    const EngineStats stats = engine->stats();
    EXPECT_EQ(stats.running, 0);
    EXPECT_EQ(stats.waiting, 0);
    EXPECT_EQ(stats.kv_pages_used, stats.kv_pages_cached) << "pages that nobody can give back";
  }

  std::shared_ptr<CollectingSink> sink;
  std::unique_ptr<EngineLoop> engine;
};

inline Request make_request(std::vector<int32_t> prompt, int max_tokens, float temperature = 0.0f) {
  Request r;
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  r.sampling.temperature = temperature;
  return r;
}

inline std::vector<int32_t> random_prompt(int count, std::mt19937& rng, int vocab = 131) {
  std::vector<int32_t> tokens(size_t(count), 0);
  for (int32_t& t : tokens) t = int32_t(rng() % unsigned(vocab));
  return tokens;
}

inline WeightFormat mixed_formats(const std::string& name) {
  if (name.find("router") != std::string::npos || name == "embed") return WeightFormat::kF32;
  if (name.find(".experts.") != std::string::npos)
    return name.back() == 'n' ? WeightFormat::kQ4_1 : WeightFormat::kQ8_0;
  return name.find(".0.") != std::string::npos ? WeightFormat::kBF16 : WeightFormat::kQ8_0;
}

}  // namespace freetoken::testing
