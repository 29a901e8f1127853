// The engine on RefOps: steady decoding is replayed, and the device library is opened like any other.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "api/checkpoint_files.h"
#include "engine/tiny_engine.h"
#include "ops/device_entry.h"

namespace freetoken {
namespace {

using namespace freetoken::testing;

// Seen from the engine's thread only while it is idle.
struct Watched {
  Watched(const ModelSpec& spec, EngineSetup setup) {
    setup.device = DeviceKind::kRef;
    setup.wrap = [this](std::unique_ptr<Ops> ops) {
      device = dynamic_cast<ref::RefOps*>(ops.get());
      return ops;
    };
    engine = std::make_unique<TinyEngine>(spec, random_weights(spec, 83, mixed_formats), setup);
  }
  ref::RefOps* device = nullptr;
  std::unique_ptr<TinyEngine> engine;
};

TEST(RefOpsEngine, SteadyDecodingReplaysOneGraph) {
  for (const ModelSpec& spec : {llama_spec(), moe_spec(), window_spec()}) {
    Watched w(spec, {.drafts = false});
    std::mt19937 rng(3);
    auto decode = [&](int requests, int tokens) {
      std::vector<RequestId> ids;
      for (int i = 0; i < requests; i++) {
        Request r = make_request(random_prompt(9, rng), tokens, i % 2 ? 0.8f : 0.0f);
        r.ignore_eos = true;
        if (i == 1) r.sampling.repetition_penalty = 1.2f, r.sampling.top_k = 30;
        ids.push_back(w.engine->submit(std::move(r)));
      }
      for (const RequestId id : ids) EXPECT_EQ(w.engine->sink->wait(id).completion_tokens, tokens);
      w.engine->expect_idle();
      return w.device->stats();
    };
    const ref::RefStats one = decode(1, 120);
    EXPECT_LE(one.captures, 3) << "a prompt and one row, and what ends them";
    EXPECT_GE(one.replays, 115);
    // Four that start together, more or less: their numbers of rows come and go, and then stay.
    decode(4, 150);
    const ref::RefStats four = decode(4, 150);
    EXPECT_GE(four.replays * 20, four.steps * 17) << four.captures << " captures in " << four.steps << " steps";
  }
}

TEST(DeviceLibrary, AnswersAsTheCpu) {
  const ModelSpec spec = moe_spec();
  const TinyWeights weights = random_weights(spec, 83, mixed_formats);
  std::mt19937 rng(1);
  Request request = make_request(random_prompt(90, rng), 20, 0.9f);
  request.logits = LogitsMode::kAll, request.logprobs = 3, request.sampling.seed = 5;
  std::vector<Outcome> outcomes;
  for (const char* library : {"", FT_REF_LIBRARY}) {
    CheckpointFiles files(spec, weights);
    files.options.device_library = library;
    auto sink = std::make_shared<CollectingSink>();
    std::unique_ptr<Engine> engine;
    const Status loaded = Engine::load(files.options, sink, &engine);
    ASSERT_TRUE(loaded.ok()) << loaded.message();
    RequestId id = 0;
    ASSERT_TRUE(engine->submit(request, &id).ok());
    outcomes.push_back(sink->wait(id));
  }
  EXPECT_EQ(outcomes[0].tokens, outcomes[1].tokens);
  EXPECT_EQ(outcomes[0].logits, outcomes[1].logits);
  ASSERT_EQ(outcomes[0].logprobs.size(), 20u);
  ASSERT_EQ(outcomes[1].logprobs.size(), 20u);
  for (size_t i = 0; i < 20; i++) EXPECT_EQ(outcomes[0].logprobs[i].top, outcomes[1].logprobs[i].top);
}

TEST(DeviceLibrary, WhatIsNoneIsRefused) {
  CheckpointFiles files(moe_spec(), random_weights(moe_spec(), 83, mixed_formats));
  for (const auto& [library, named] : std::vector<std::pair<std::string, std::string>>{
           {"/nowhere/libdevice.so", "/nowhere/libdevice.so"}, {"libm.so.6", "exports no freetoken_device"}}) {
    LoadOptions options = files.options;
    options.device_library = library;
    std::unique_ptr<Engine> engine;
    const Status status = Engine::load(options, std::make_shared<CollectingSink>(), &engine);
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_NE(status.message().find(named), std::string::npos) << status.message();
  }
}

TEST(DeviceLibrary, OptionsThatItLacksAreRefusedByName) {
  CheckpointFiles files(moe_spec(), random_weights(moe_spec(), 83, mixed_formats));
  auto refusal = [&](auto change) {
    LoadOptions options = files.options;
    change(options);
    std::unique_ptr<Engine> engine;
    const Status status = Engine::load(options, std::make_shared<CollectingSink>(), &engine);
    EXPECT_FALSE(status.ok());
    return status.message();
  };
  EXPECT_NE(refusal([](LoadOptions& o) { o.device_library = FT_REF_LIBRARY, o.expert_slots = 4; }).find("expert slots"),
            std::string::npos);
  EXPECT_NE(refusal([](LoadOptions& o) { o.device_library = FT_REF_LIBRARY, o.device_ordinal = 3; }).find("not 3"),
            std::string::npos);
  EXPECT_NE(refusal([](LoadOptions& o) { o.device = DeviceMode::kCpu, o.expert_slots = 4; }).find("expert_slots is 4"),
            std::string::npos);
  EXPECT_NE(refusal([](LoadOptions& o) { o.device_ordinal = -1; }).find("device_ordinal is -1"), std::string::npos);
}

TEST(DeviceLibrary, AnotherAbiIsAnsweredByTheNumberAlone) {
  void* library = dlopen(FT_REF_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto entry = reinterpret_cast<DeviceEntry>(dlsym(library, kDeviceEntry));
  ASSERT_NE(entry, nullptr);
  // Neither pointer is looked at.
  EXPECT_EQ(entry(kDeviceAbi + 1, nullptr, nullptr), kDeviceAbi);
}

}  // namespace
}  // namespace freetoken
