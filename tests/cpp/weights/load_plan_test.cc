#include "weights/load_plan.h"

#include <gtest/gtest.h>

#include <functional>

namespace freetoken {
namespace {

// hidden 32, vocab 10, one layer: attention of 2 query and 1 KV heads of 16, experts 2 x 48.
ModelSpec small_spec() {
  ModelSpec spec;
  spec.hidden = 32, spec.vocab = 10, spec.max_positions = 8;
  SublayerSpec attention;
  attention.kind = SublayerKind::kAttention;
  attention.pre_norm.kind = NormKind::kRms;
  attention.attention.q_heads = 2, attention.attention.kv_heads = 1;
  attention.attention.qk_dim = attention.attention.v_dim = 16;
  SublayerSpec moe;
  moe.kind = SublayerKind::kMoe;
  moe.moe.experts = 2, moe.moe.experts_per_token = 1, moe.moe.inner = 48;
  spec.layers = {{{attention, moe}}};
  return spec;
}

WeightTable small_table() {
  WeightTable table;
  table.files = {"/model/part0", "/model/part1"};
  const auto add = [&](const std::string& name, int n, int k, int file = 0) {
    const int64_t bytes = int64_t(n) * (k ? k : 1) * 4;
    table.tensors.push_back({name, file, int64_t(1000 * table.tensors.size()), bytes, WeightFormat::kF32, n, k, "ckpt." + name, 0});
  };
  add("lm_head", 10, 32, 1);
  add("embed", 10, 32);
  add("layers.0.0.pre_norm", 32, 0);
  add("layers.0.0.q", 32, 32);
  add("layers.0.0.k", 16, 32);
  add("layers.0.0.v", 16, 32);
  add("layers.0.0.o", 32, 32);
  add("layers.0.1.router", 2, 32);
  for (const std::string e : {"layers.0.1.experts.0.", "layers.0.1.experts.1."}) {
    add(e + "gate", 48, 32);
    add(e + "up", 48, 32);
    add(e + "down", 32, 48);
  }
  return table;
}

WeightEntry& find(WeightTable& table, const std::string& name) {
  for (WeightEntry& entry : table.tensors)
    if (entry.name == name) return entry;
  throw std::runtime_error(name);
}

TEST(LoadPlan, BytesByHand) {
  const WeightTable table = small_table();
  auto plan = make_load_plan(table, small_spec());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  // An f32 tile of 32 rows has 128 bytes per column. embed and lm_head: one tile each of 32 columns.
  EXPECT_EQ(plan->embedding_bytes, 2 * 32 * 128);
  // q, k, v, o and router: one tile of 32 columns each; the norm 32 floats.
  EXPECT_EQ(plan->dense_bytes, 5 * 32 * 128 + 32 * 4);
  // gate_up: 96 rows = 3 tiles of 32 columns; down: one tile of 48 columns; both are multiples of 64, the sum is rounded to 4096.
  EXPECT_EQ(3 * 32 * 128 + 48 * 128, 18432);
  EXPECT_EQ(plan->expert_bytes, 2 * 20480);
  ASSERT_EQ(plan->items.size(), 10u);
  EXPECT_EQ(plan->items.back().tensors[0].info.name, "lm_head") << "by file and offset";
  EXPECT_EQ(plan->items.front().tensors[0].info.name, "embed");
}

TEST(LoadPlan, ExtentLayout) {
  const WeightTable table = small_table();
  auto plan = make_load_plan(table, small_spec());
  ASSERT_TRUE(plan.ok());
  for (const LoadItem& item : plan->items) {
    if (!item.is_extent) continue;
    ASSERT_EQ(item.extent.parts.size(), 2u);
    EXPECT_EQ(item.extent.parts[0].tensor.name, item.extent.name + ".gate_up");
    EXPECT_EQ(item.extent.parts[1].tensor.name, item.extent.name + ".down");
    EXPECT_EQ(item.extent.parts[1].offset, 12288u);
    EXPECT_EQ(item.extent.bytes, 20480u);
  }
}

struct BadTable {
  const char* name;
  std::function<void(WeightTable&, ModelSpec&)> change;
  std::string message;
};

TEST(LoadPlan, ErrorsNameTheTensor) {
  const BadTable cases[] = {
      {"missing", [](auto& t, auto&) { std::erase_if(t.tensors, [](auto& e) { return e.name == "layers.0.0.k"; }); },
       "tensor layers.0.0.k [16, 32] is missing from the checkpoint"},
      {"missing expert", [](auto& t, auto&) { std::erase_if(t.tensors, [](auto& e) { return e.name == "layers.0.1.experts.1.up"; }); },
       "tensor layers.0.1.experts.1.up [48, 32] is missing from the checkpoint"},
      {"extra", [](auto& t, auto&) { t.tensors.push_back({"layers.7.0.q", 1, 0, 4, WeightFormat::kF32, 1, 1, "blk.7", 0}); },
       "/model/part1: 1 tensors that the model has no place for: 'blk.7' (layers.7.0.q)"},
      {"tied has no head", [](auto&, auto& s) { s.tied_embedding = true; },
       "/model/part1: 1 tensors that the model has no place for: 'ckpt.lm_head' (lm_head)"},
      {"rows", [](auto& t, auto&) { find(t, "embed").n = 11; },
       "/model/part0: tensor 'ckpt.embed' (embed) has shape [11, 32], the model needs [10, 32]"},
      {"vector for matrix", [](auto& t, auto&) { find(t, "layers.0.0.q").k = 0; },
       "/model/part0: tensor 'ckpt.layers.0.0.q' (layers.0.0.q) has shape [32], the model needs [32, 32]"},
      {"matrix for vector", [](auto& t, auto&) { find(t, "layers.0.0.pre_norm").k = 1; },
       "/model/part0: tensor 'ckpt.layers.0.0.pre_norm' (layers.0.0.pre_norm) has shape [32, 1], the model needs [32]"},
      {"heads", [](auto& t, auto&) { find(t, "layers.0.0.q").rotary_heads = 4; },
       "/model/part0: tensor 'ckpt.layers.0.0.q' (layers.0.0.q) has rotary rows of 4 heads, the model has 2 here"},
      {"rotary where there is none", [](auto& t, auto&) { find(t, "layers.0.0.v").rotary_heads = 1; },
       "/model/part0: tensor 'ckpt.layers.0.0.v' (layers.0.0.v) has rotary rows of 1 heads, the model has 0 here"},
      {"product beyond int", [](auto&, auto& s) {
         s.layers[0].sublayers[0].attention.q_heads = 1 << 20;
         s.layers[0].sublayers[0].attention.qk_dim = 1 << 20;
       },
       "/model/part0: tensor 'ckpt.layers.0.0.q' (layers.0.0.q) has shape [32, 32], the model needs [1099511627776, 32]"},
  };
  for (const BadTable& c : cases) {
    WeightTable table = small_table();
    ModelSpec spec = small_spec();
    c.change(table, spec);
    auto plan = make_load_plan(table, spec);
    EXPECT_EQ(plan.status().code(), StatusCode::kInvalidArgument) << c.name;
    EXPECT_EQ(plan.status().message(), c.message) << c.name;
  }
}

TEST(LoadPlan, SublayersOfLaterVersionsAreRefused) {
  ModelSpec spec = small_spec();
  spec.layers[0].sublayers[1].kind = SublayerKind::kLinearAttention;
  const WeightTable table = small_table();
  EXPECT_EQ(make_load_plan(table, spec).status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace freetoken
