// A tiny qwen3_moe whose experts lie in a file: slots for a quarter of them, reads that end late and in any order.
// Tokens and logits are those of the same device with all experts in its memory, bit for bit.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <unistd.h>

#include "cuda/experts/slow_resolver.h"
#include "cuda_device.h"
#include "engine/faulty_ops.h"
#include "engine/tiny_engine.h"
#include "ops/plain.h"

namespace freetoken {
namespace {

using namespace freetoken::testing;

constexpr int kExperts = 8, kLayers = 2, kSlots = kExperts * kLayers / 4;

ModelSpec qwen3_moe_spec() {
  const NormSpec rms{.kind = NormKind::kRms, .eps = 1e-6f};
  ModelSpec spec = llama_spec();
  spec.layers.clear();
  for (int l = 0; l < kLayers; l++) {
    SublayerSpec attention = make_attention(4, 2, 32, 32, rms), moe = make_moe(kExperts, 2, 64, rms);
    attention.attention.q_norm = attention.attention.k_norm = rms;
    moe.moe.normalise = true;
    spec.layers.push_back({{attention, moe}});
  }
  spec.rope_tables = {make_rope(32)};
  return spec;
}

// The experts of a device that has them in host memory, moved to a file.
struct ExpertFile {
  std::FILE* file = std::tmpfile();
  ~ExpertFile() { std::fclose(file); }
  void take(const Ops& ops, int64_t* bytes) {
    for (int key = 0; key < kLayers * kExperts; key++) {
      const int layer = key / kExperts, expert = key % kExperts;
      const std::string name = "layers." + std::to_string(layer) + ".1.experts." + std::to_string(expert);
      ASSERT_NE(ops.expert_layout(name), nullptr);
      *bytes = ops.expert_layout(name)->bytes;
      uint8_t* extent = reinterpret_cast<uint8_t*>(ops.extent_address(name));
      ASSERT_EQ(pwrite(fileno(file), extent, size_t(*bytes), key * *bytes), *bytes);
      std::memset(extent, 0xee, size_t(*bytes));  // nobody reads it there
    }
  }
};

class DiskExperts : public ::testing::TestWithParam<WeightFormat> {
 protected:
  ModelSpec spec = qwen3_moe_spec();
  TinyWeights weights = random_weights(spec, 6, [](const std::string& name) {
    return name.find("router") != std::string::npos ? WeightFormat::kF32 : GetParam();
  });
  std::vector<Request> requests;
  std::vector<uint8_t> usable = std::vector<uint8_t>(size_t(spec.vocab), 1);
  ExpertFile file;
  std::shared_ptr<FaultyOps::Faults> faults = std::make_shared<FaultyOps::Faults>();
  cuda::CudaOps* ops = nullptr;
  std::unique_ptr<cuda::ExpertBytes> sizes;
  std::unique_ptr<cuda::SlowResolver> resolver;

  void SetUp() override {
    std::mt19937 rng(31);
    for (const int length : {20, 3}) {
      requests.push_back(make_request(random_prompt(length, rng), 8));
      requests.back().logits = LogitsMode::kSampled;
    }
  }
  std::vector<Outcome> run_all(TinyEngine& engine) {
    std::vector<RequestId> ids;
    for (const Request& r : requests) ids.push_back(engine.submit(r));
    std::vector<Outcome> outcomes;
    for (const RequestId id : ids) outcomes.push_back(engine.sink->wait(id));
    return outcomes;
  }
  EngineSetup from_file(uint32_t seed) {
    EngineSetup setup;
    setup.drafts = false;
    setup.wrap = [this, seed](std::unique_ptr<Ops>) -> std::unique_ptr<Ops> {
      auto made = make_cuda(usable, kSlots);
      ops = made.get();
      weights.fill(*made);
      int64_t bytes = 0;
      file.take(*made, &bytes);
      sizes = std::make_unique<cuda::ExpertBytes>(kLayers, kExperts, bytes, seed);
      resolver = std::make_unique<cuda::SlowResolver>(*sizes, seed, 100);
      resolver->read_extent = [this, bytes](int key, uint8_t* to) {
        EXPECT_EQ(pread(fileno(file.file), to, size_t(bytes), key * bytes), bytes);
      };
      faults->resolver = resolver.get();
      return std::make_unique<FaultyOps>(std::move(made), faults);
    };
    return setup;
  }
};

TEST_P(DiskExperts, TheBitsOfResidentOnes) {
  std::vector<Outcome> expected;
  {
    EngineSetup setup;
    setup.drafts = false;
    setup.wrap = [this](std::unique_ptr<Ops>) {
      auto made = make_cuda(usable);
      weights.fill(*made);
      return made;
    };
    TinyEngine resident(spec, weights, setup);
    expected = run_all(resident);
  }
  for (const uint32_t seed : {0u, 1u}) {
    emu::reseed(seed);
    TinyEngine gpu(spec, weights, from_file(seed));
    const std::vector<Outcome> got = run_all(gpu);
    for (size_t i = 0; i < got.size(); i++) {
      ASSERT_TRUE(got[i].error.ok()) << got[i].error.message();
      EXPECT_EQ(got[i].tokens, expected[i].tokens);
      EXPECT_TRUE(same_bits(got[i].logits, expected[i].logits)) << "request " << i;
    }
    // Steps whose logits are read are not captured.
    for (size_t i = 0; i < requests.size(); i++) {
      Request drawn = requests[i];
      drawn.logits = LogitsMode::kNone;
      EXPECT_EQ(gpu.sink->wait(gpu.submit(drawn)).tokens, expected[i].tokens) << "captured";
    }
    gpu.engine->shutdown();
    EXPECT_GT(ops->stats().replays, 0) << "graphs ask for experts too";
    const auto counters = ops->expert_slots().counters();
    ASSERT_TRUE(counters.ok());
    EXPECT_GT(counters->misses, uint64_t(kLayers * kExperts)) << "every expert was read once at most";
    EXPECT_GT(counters->hits, 0u);
  }
  emu::reseed(0);
}

TEST_P(DiskExperts, AReadThatFailsEndsTheRequestWithItsReason) {
  TinyEngine gpu(spec, weights, from_file(3));
  for (int key = 0; key < kLayers * kExperts; key++) resolver->failing.insert(key);
  const Outcome outcome = gpu.sink->wait(gpu.submit(requests[0]));
  EXPECT_FALSE(outcome.error.ok());
  EXPECT_NE(outcome.error.message().find("cannot read expert"), std::string::npos) << outcome.error.message();
}

INSTANTIATE_TEST_SUITE_P(Formats, DiskExperts, ::testing::Values(WeightFormat::kBF16, WeightFormat::kQ4_0),
                         [](const auto& info) { return info.param == WeightFormat::kBF16 ? "bf16" : "q4_0"; });

}  // namespace
}  // namespace freetoken
