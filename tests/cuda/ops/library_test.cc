// libfreetoken_cuda_emu.so, opened by the engine as a device library: the way of the real one.
#include <gtest/gtest.h>

#include "api/checkpoint_files.h"
#include "engine/tiny_engine.h"
#include "freetoken/device.h"

namespace freetoken {
namespace {

using namespace freetoken::testing;

WeightFormat formats(const std::string& name) {
  if (name.find(".experts.") != std::string::npos) return WeightFormat::kQ8_0;
  return name.find("router") != std::string::npos ? WeightFormat::kF32 : WeightFormat::kBF16;
}

TEST(CudaLibrary, AnswersWhatTheDeviceOfThisProgramAnswers) {
  const ModelSpec spec = moe_spec();
  const TinyWeights weights = random_weights(spec, 83, formats);
  std::mt19937 rng(1);
  Request request = make_request(random_prompt(90, rng), 20, 0.9f);
  request.logits = LogitsMode::kAll, request.logprobs = 3, request.sampling.seed = 5;
  TinyEngine linked(spec, weights, {});
  const Outcome expected = linked.run(request);
  CheckpointFiles files(spec, weights);
  files.options.device_library = FT_CUDA_EMU_LIBRARY;
  auto sink = std::make_shared<CollectingSink>();
  std::unique_ptr<Engine> engine;
  const Status loaded = Engine::load(files.options, sink, &engine);
  ASSERT_TRUE(loaded.ok()) << loaded.message();
  EXPECT_EQ(engine->stats().device, "cuda");
  EXPECT_TRUE(engine->stats().batch_invariant);
  RequestId id = 0;
  ASSERT_TRUE(engine->submit(request, &id).ok());
  const Outcome got = sink->wait(id);
  EXPECT_EQ(got.tokens, expected.tokens);
  EXPECT_EQ(got.logits, expected.logits);
  ASSERT_EQ(got.logprobs.size(), 20u);
  for (size_t i = 0; i < 20; i++) EXPECT_EQ(got.logprobs[i].top, expected.logprobs[i].top);
}

// The emulated GPU counts its memory as a real one does.
TEST(CudaLibrary, TakesNoMoreMemoryThanThePlan) {
  constexpr int64_t kReserve = int64_t(384) << 20;
  for (const int slots : {0, 3}) {
    CheckpointFiles files(moe_spec(), random_weights(moe_spec(), 83, formats));
    files.options.device_library = FT_CUDA_EMU_LIBRARY;
    files.options.expert_slots = slots;
    MemoryPlan plan;
    ASSERT_TRUE(plan_memory(files.options, &plan).ok());
    const int64_t before = probe_cuda(FT_CUDA_EMU_LIBRARY).free_bytes;
    EXPECT_EQ(plan.device_available_bytes, before);
    std::unique_ptr<Engine> engine;
    auto sink = std::make_shared<CollectingSink>();
    ASSERT_TRUE(Engine::load(files.options, sink, &engine).ok());
    std::mt19937 rng(1);
    Request request = make_request(random_prompt(90, rng), 8, 0.9f);
    request.sampling.repetition_penalty = 1.2f;
    RequestId id = 0;
    ASSERT_TRUE(engine->submit(request, &id).ok());
    EXPECT_EQ(sink->wait(id).tokens.size(), 8u);
    const int64_t taken = before - probe_cuda(FT_CUDA_EMU_LIBRARY).free_bytes;
    EXPECT_LE(taken, plan.device_total_bytes);
    EXPECT_GE(taken, (plan.device_total_bytes - kReserve) / 2) << "the plan is no wild guess";
  }
}

// What has no kernel is refused while loading, by name.
TEST(CudaLibrary, WhatItLacksIsRefusedWhileLoading) {
  auto refusal = [](const ModelSpec& spec, const FormatOf& format, auto change) {
    CheckpointFiles files(spec, random_weights(spec, 83, format));
    files.options.device_library = FT_CUDA_EMU_LIBRARY;
    change(files.options);
    std::unique_ptr<Engine> engine;
    const Status status = Engine::load(files.options, std::make_shared<CollectingSink>(), &engine);
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << status.message();
    return status.message();
  };
  const auto nothing = [](LoadOptions&) {};
  EXPECT_NE(refusal(moe_spec(), [](const std::string&) { return WeightFormat::kF32; }, nothing).find("experts in f32"), std::string::npos);
  EXPECT_NE(refusal(moe_spec(), [](const std::string& n) { return n.find("router") != std::string::npos ? WeightFormat::kQ8_0 : WeightFormat::kBF16; },
                    nothing).find("a router in q8_0 (layers.0.1.router)"), std::string::npos);
  ModelSpec wide = llama_spec();
  wide.layers[0].sublayers[0] = make_attention(1, 1, 512, 16, wide.final_norm);
  EXPECT_NE(refusal(wide, formats, nothing).find("heads of more than 256"), std::string::npos);
  EXPECT_NE(refusal(odd_spec(), [](const std::string&) { return WeightFormat::kBF16; }, nothing).find("heads of 20 and 32 elements"), std::string::npos);
  EXPECT_NE(refusal(moe_spec(), formats, [](LoadOptions& o) { o.activations = ActivationMode::kFloat32; }).find("fp32 activations"),
            std::string::npos);
}

}  // namespace
}  // namespace freetoken
