// Figures worked out by hand from the shapes below.
#include "plan/memory_plan.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "plan/saturating.h"

namespace freetoken {
namespace {

constexpr int64_t kGiB = int64_t(1) << 30;

// 4 layers of attention (8 query heads, 2 KV heads of 64) and MLP, hidden 512.
ModelSpec small_model() {
  ModelSpec spec;
  spec.hidden = 512, spec.vocab = 1000, spec.max_positions = 4096;
  SublayerSpec attention;
  attention.kind = SublayerKind::kAttention;
  attention.attention.q_heads = 8, attention.attention.kv_heads = 2;
  attention.attention.qk_dim = 64, attention.attention.v_dim = 64;
  SublayerSpec mlp;
  mlp.kind = SublayerKind::kMlp;
  mlp.mlp.inner = 1024;
  for (int i = 0; i < 4; i++) spec.layers.push_back({{attention, mlp}});
  return spec;
}

MemoryPlanInput small_input() {
  MemoryPlanInput input;
  input.dense_bytes = 100 << 20, input.embedding_bytes = 20 << 20;
  input.max_batch_tokens = 256, input.max_running_requests = 4, input.threads = 2;
  input.available_bytes = 8 * kGiB;
  return input;
}

int64_t row_bytes(const MemoryPlan& plan, const std::string& what) {
  for (const PlanRow& row : plan.rows)
    if (row.what == what) return row.bytes;
  return -1;
}

TEST(MemoryPlan, KvBytesPerToken) {
  // 4 layers x 2 heads x (64 + 64) elements = 1024
  EXPECT_EQ(kv_bytes_per_token(small_model(), 2), 2048);
  EXPECT_EQ(kv_bytes_per_token(small_model(), 4), 4096);
  ModelSpec mixed = small_model();
  mixed.layers[1].sublayers[0].attention.v_dim = 32;  // one layer 2 x (64 + 32): 64 elements fewer
  EXPECT_EQ(kv_bytes_per_token(mixed, 2), 2048 - 128);
  EXPECT_EQ(kv_bytes_per_token({}, 2), 0);
}

TEST(MemoryPlan, RowsAddUpToTheTotal) {
  MemoryPlan plan;
  ASSERT_TRUE(make_memory_plan(small_model(), small_input(), &plan).ok());
  int64_t sum = 0;
  for (const PlanRow& row : plan.rows) sum += row.bytes;
  EXPECT_EQ(plan.total_bytes, sum);
  EXPECT_EQ(plan.available_bytes, 8 * kGiB);
  EXPECT_EQ(row_bytes(plan, "dense weights"), 100 << 20);
  EXPECT_EQ(row_bytes(plan, "embeddings"), 20 << 20);
  EXPECT_EQ(row_bytes(plan, "experts"), -1) << "no row for what the model has not";
  EXPECT_EQ(row_bytes(plan, "logits"), 64 * (1000 + 2 * 512) * 4);
}

TEST(MemoryPlan, AmpleMemoryGivesEveryRequestAFullSequence) {
  MemoryPlan plan;
  ASSERT_TRUE(make_memory_plan(small_model(), small_input(), &plan).ok());
  EXPECT_EQ(plan.kv_tokens, 4 * 4096);
  EXPECT_EQ(plan.max_sequence_tokens, 4096);
  EXPECT_EQ(row_bytes(plan, "KV cache"), int64_t(4) * 4096 * 2048);
}

TEST(MemoryPlan, ChosenPoolTakesHalfOfWhatIsLeft) {
  MemoryPlanInput input = small_input();
  input.max_running_requests = 1000;  // would like 1000 x 8 MiB
  MemoryPlan plan;
  ASSERT_TRUE(make_memory_plan(small_model(), input, &plan).ok());
  const int64_t page = 64 * 2048, kv = row_bytes(plan, "KV cache"), left = input.available_bytes - (plan.total_bytes - kv);
  EXPECT_EQ(kv, left / 2 / page * page);
  EXPECT_EQ(plan.kv_tokens, kv / 2048);
}

TEST(MemoryPlan, OneFullSequenceIsTheLeast) {
  MemoryPlanInput input = small_input();
  MemoryPlan plan;
  ASSERT_TRUE(make_memory_plan(small_model(), input, &plan).ok());
  const int64_t fixed = plan.total_bytes - row_bytes(plan, "KV cache");
  input.available_bytes = fixed + 4096 * 2048;  // exactly one
  ASSERT_TRUE(make_memory_plan(small_model(), input, &plan).ok());
  EXPECT_EQ(plan.kv_tokens, 4096);
  EXPECT_EQ(plan.total_bytes, input.available_bytes);
  input.available_bytes -= 1;
  const Status status = make_memory_plan(small_model(), input, &plan);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("lower --max-seq-len-override to at most 4032"), std::string::npos) << status.message();
  EXPECT_EQ(plan.rows.size(), 6u) << "the table is shown with the error";
  input.max_sequence_tokens = 4032;  // the advice is true
  EXPECT_TRUE(make_memory_plan(small_model(), input, &plan).ok());
  EXPECT_EQ(plan.max_sequence_tokens, 4032);
}

TEST(MemoryPlan, SequencesTakeWholePages) {
  MemoryPlanInput input = small_input();
  input.max_sequence_tokens = 65;
  MemoryPlan plan;
  ASSERT_TRUE(make_memory_plan(small_model(), input, &plan).ok());
  EXPECT_EQ(plan.kv_tokens, 4 * 128);
  EXPECT_EQ(plan.max_sequence_tokens, 65);
}

TEST(MemoryPlan, GivenPool) {
  MemoryPlanInput input = small_input();
  MemoryPlan plan;
  input.kv_tokens = 5000;
  ASSERT_TRUE(make_memory_plan(small_model(), input, &plan).ok());
  EXPECT_EQ(plan.kv_tokens, 5056) << "79 pages of 64";
  input.kv_tokens = 4095;
  const Status less = make_memory_plan(small_model(), input, &plan);
  EXPECT_EQ(less.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(less.message().find("4095 tokens holds less than one sequence of 4096"), std::string::npos) << less.message();
  input.kv_tokens = 1 << 30;  // 2 TiB
  const Status more = make_memory_plan(small_model(), input, &plan);
  EXPECT_EQ(more.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(more.message().find("lower --num-tokens to at most "), std::string::npos) << more.message();
  EXPECT_NE(more.message().find("8.0 GiB is available"), std::string::npos) << more.message();
  input.kv_tokens = (int64_t(1) << 31) * 64;
  EXPECT_EQ(make_memory_plan(small_model(), input, &plan).code(), StatusCode::kInvalidArgument) << "page ids are int32";
}

TEST(MemoryPlan, WeightsThatDoNotFit) {
  MemoryPlanInput input = small_input();
  input.expert_bytes = 9 * kGiB;
  MemoryPlan plan;
  const Status status = make_memory_plan(small_model(), input, &plan);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("the weights and the working memory alone do not fit"), std::string::npos) << status.message();
  EXPECT_EQ(row_bytes(plan, "experts"), 9 * kGiB);
}

TEST(MemoryPlan, ActivationsCoverWhatTheShapesNeed) {
  // 256 rows x 4 bytes x (hidden, normed, update: 3 x 512; q 512, k 128, v 128, output 512; inner 1024)
  MemoryPlan plan;
  ASSERT_TRUE(make_memory_plan(small_model(), small_input(), &plan).ok());
  EXPECT_GE(row_bytes(plan, "activations and scratch"), 256 * 4 * (3 * 512 + 1280 + 1024));
  ModelSpec moe = small_model();
  SublayerSpec experts;
  experts.kind = SublayerKind::kMoe;
  experts.moe.experts = 64, experts.moe.experts_per_token = 8, experts.moe.inner = 1024;
  moe.layers[2].sublayers[1] = experts;
  MemoryPlan moe_plan;
  ASSERT_TRUE(make_memory_plan(moe, small_input(), &moe_plan).ok());
  EXPECT_GE(row_bytes(moe_plan, "activations and scratch") - row_bytes(plan, "activations and scratch"), 256 * 4 * 7 * 1024);
}

MemoryPlanInput device_input() {
  MemoryPlanInput input = small_input();
  input.expert_bytes = 5 * kGiB, input.staging_bytes = 7 << 20, input.expert_slot_bytes = 10 << 20;
  input.device_available_bytes = 24 * kGiB;
  return input;
}

int64_t sum_of(const MemoryPlan& plan, bool on_device) {
  int64_t sum = 0;
  for (const PlanRow& row : plan.rows) sum += row.on_device == on_device ? row.bytes : 0;
  return sum;
}

bool on_device(const MemoryPlan& plan, const std::string& what) {
  for (const PlanRow& row : plan.rows)
    if (row.what == what) return row.on_device;
  ADD_FAILURE() << "no row " << what;
  return false;
}

TEST(MemoryPlan, ADeviceHoldsEverythingButTheProcess) {
  MemoryPlan plan;
  ASSERT_TRUE(make_memory_plan(small_model(), device_input(), &plan).ok());
  EXPECT_EQ(plan.device_total_bytes, sum_of(plan, true));
  EXPECT_EQ(plan.total_bytes, sum_of(plan, false));
  EXPECT_EQ(plan.device_available_bytes, 24 * kGiB);
  EXPECT_EQ(plan.available_bytes, 8 * kGiB);
  for (const char* what : {"dense weights", "experts", "embeddings", "KV cache", "activations and scratch", "logits"})
    EXPECT_TRUE(on_device(plan, what)) << what;
  EXPECT_LT(plan.total_bytes, 200 << 20) << "the process, two read buffers, 7 MiB of staging";
  MemoryPlan without;
  MemoryPlanInput input = device_input();
  input.staging_bytes = 0;
  ASSERT_TRUE(make_memory_plan(small_model(), input, &without).ok());
  EXPECT_EQ(plan.total_bytes - without.total_bytes, 7 << 20);
}

TEST(MemoryPlan, SlotsAreOnTheDeviceAndExpertsInTheHost) {
  MemoryPlanInput input = device_input();
  input.expert_slots = 30, input.device_available_bytes = 2 * kGiB;
  MemoryPlan plan;
  ASSERT_TRUE(make_memory_plan(small_model(), input, &plan).ok());
  EXPECT_EQ(row_bytes(plan, "expert slots"), int64_t(300) << 20);
  EXPECT_TRUE(on_device(plan, "expert slots"));
  EXPECT_EQ(row_bytes(plan, "experts"), 5 * kGiB);
  EXPECT_FALSE(on_device(plan, "experts"));
  input.available_bytes = 5 * kGiB;  // the experts alone
  const Status status = make_memory_plan(small_model(), input, &plan);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("of the host's memory and 5.0 GiB is available (experts 5.0 GiB)"), std::string::npos)
      << status.message();
}

TEST(MemoryPlan, TheChosenPoolTakesAllThatADeviceHas) {
  MemoryPlanInput input = device_input();
  input.max_running_requests = 100'000;  // would like 800 GiB, and a history of 4 KB each
  MemoryPlan plan;
  ASSERT_TRUE(make_memory_plan(small_model(), input, &plan).ok());
  const int64_t page = 64 * 2048;
  EXPECT_LE(plan.device_total_bytes, input.device_available_bytes);
  EXPECT_GT(plan.device_total_bytes, input.device_available_bytes - page);
}

TEST(MemoryPlan, WhatADeviceCannotHold) {
  MemoryPlanInput input = device_input();
  input.device_available_bytes = 5 * kGiB;
  MemoryPlan plan;
  Status status = make_memory_plan(small_model(), input, &plan);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("of the GPU's memory and 5.0 GiB is available"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("--moe-cache-size"), std::string::npos) << status.message();
  input.expert_slots = 30;  // the advice is true
  EXPECT_TRUE(make_memory_plan(small_model(), input, &plan).ok());
  input.kv_tokens = 1 << 30;
  status = make_memory_plan(small_model(), input, &plan);
  const size_t at = status.message().find("lower --num-tokens to at most ");
  ASSERT_NE(at, std::string::npos) << status.message();
  input.kv_tokens = std::stoll(status.message().substr(at + 30));
  EXPECT_TRUE(make_memory_plan(small_model(), input, &plan).ok());
  EXPECT_LE(plan.device_total_bytes, input.device_available_bytes);
  input.kv_tokens += 64;
  EXPECT_FALSE(make_memory_plan(small_model(), input, &plan).ok());
}

TEST(MemoryPlan, NumbersThatMakeNoSense) {
  MemoryPlan plan;
  const auto code = [&](auto&& change) {
    MemoryPlanInput input = small_input();
    change(input);
    return make_memory_plan(small_model(), input, &plan).code();
  };
  constexpr auto kBad = StatusCode::kInvalidArgument;
  EXPECT_EQ(code([](auto& i) { i.dense_bytes = -1; }), kBad);
  EXPECT_EQ(code([](auto& i) { i.kv_tokens = -1; }), kBad);
  EXPECT_EQ(code([](auto& i) { i.max_batch_tokens = 0; }), kBad);
  EXPECT_EQ(code([](auto& i) { i.max_running_requests = 0; }), kBad);
  EXPECT_EQ(code([](auto& i) { i.threads = 0; }), kBad);
  EXPECT_EQ(code([](auto& i) { i.page_tokens = 0; }), kBad);
  EXPECT_EQ(code([](auto& i) { i.available_bytes = -5; }), kBad);
  EXPECT_EQ(code([](auto& i) { i.device_available_bytes = -5; }), kBad);
  EXPECT_EQ(code([](auto& i) { i.expert_slots = -1; }), kBad);
  EXPECT_EQ(code([](auto& i) { i.max_sequence_tokens = 4097; }), kBad);
}

TEST(MemoryPlan, AbsurdNumbersDoNotWrap) {
  ModelSpec spec = small_model();
  for (auto& layer : spec.layers)
    layer.sublayers[0].attention.kv_heads = layer.sublayers[0].attention.qk_dim = INT32_MAX;
  spec.max_positions = INT32_MAX, spec.hidden = INT32_MAX, spec.vocab = INT32_MAX;
  MemoryPlanInput input = small_input();
  input.expert_bytes = input.dense_bytes = INT64_MAX, input.threads = INT64_MAX, input.max_batch_tokens = INT64_MAX;
  input.max_running_requests = input.max_logit_rows = INT64_MAX, input.page_tokens = INT32_MAX;
  MemoryPlan plan;
  const Status status = make_memory_plan(spec, input, &plan);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(plan.total_bytes, INT64_MAX);
  for (const PlanRow& row : plan.rows) EXPECT_GE(row.bytes, 0) << row.what;
  input.device_available_bytes = input.expert_slots = input.expert_slot_bytes = INT64_MAX / 2;
  EXPECT_EQ(make_memory_plan(spec, input, &plan).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(plan.device_total_bytes, INT64_MAX);
  for (const PlanRow& row : plan.rows) EXPECT_GE(row.bytes, 0) << row.what;
  input.device_available_bytes = 0;
  input.kv_tokens = INT64_MAX;
  EXPECT_FALSE(make_memory_plan(spec, input, &plan).ok());
}

TEST(MemoryPlan, TheAdviceIsTrue) {
  int advised = 0;
  for (int64_t available = 300 << 20; available < 500 << 20; available += 777'777) {
    MemoryPlanInput input = small_input();
    input.available_bytes = available;
    input.kv_tokens = 1 << 20;
    MemoryPlan plan;
    const Status status = make_memory_plan(small_model(), input, &plan);
    ASSERT_EQ(status.code(), StatusCode::kResourceExhausted);
    const size_t at = status.message().find("to at most ");
    if (at == std::string::npos) continue;
    advised++;
    input.kv_tokens = std::stoll(status.message().substr(at + 11));
    if (status.message().find("--max-seq-len-override") != std::string::npos) input.max_sequence_tokens = input.kv_tokens;
    EXPECT_TRUE(make_memory_plan(small_model(), input, &plan).ok()) << status.message();
    input.kv_tokens += 64;
    EXPECT_FALSE(make_memory_plan(small_model(), input, &plan).ok()) << "and not smaller than it must be";
  }
  EXPECT_GT(advised, 100);
}

TEST(Saturating, StopsAtTheLargest) {
  static_assert(saturating_product({3, 4, 5}) == 60);
  static_assert(saturating_product({INT64_MAX, 2}) == INT64_MAX);
  static_assert(saturating_product({INT64_MAX, 2, 0}) == 0);
  static_assert(saturating_product({int64_t(1) << 32, int64_t(1) << 32, 1}) == INT64_MAX);
  static_assert(saturating_sum({INT64_MAX, 1, 5}) == INT64_MAX);
  static_assert(saturating_sum({1, 2}) == 3);
  static_assert(divide_up(INT64_MAX, 2) == INT64_MAX / 2 + 1);
  static_assert(divide_up(64, 64) == 1 && divide_up(65, 64) == 2 && divide_up(0, 64) == 0);
}

}  // namespace
}  // namespace freetoken
