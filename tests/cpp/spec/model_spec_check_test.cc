// Fields of the ModelSpec that must fit together, beyond those of a plain decoder. Each case is one edit of a valid spec.
#include <gtest/gtest.h>

#include <string>

#include "spec/model_spec.h"

namespace freetoken {
namespace {

// Four layers: latent attention with an indexer, one that uses its selection, a delta net, and a join of two networks.
const char kRich[] = R"({"hidden": 64, "vocab": 32, "max_positions": 64, "rope_tables": [
    {"inv_freq": [1.0, 0.1], "offset": 4, "interleaved": true}, {"inv_freq": [1.0, 0.1]}], "layers": [
  {"sublayers": [{"kind": "attention", "attention": {"type": "dsa", "q_heads": 4, "kv_heads": 1, "qk_dim": 8, "v_dim": 8,
      "scale": 0.5, "rope": 0, "q_rank": 16, "q_latent_norm": {"kind": "rms"}, "mla": {"rank": 16, "rope_dim": 4},
      "indexer": {"heads": 2, "dim": 8, "top_k": 4, "from_q_latent": true, "rope": 1}}}]},
  {"sublayers": [{"kind": "attention", "index_source": 0, "attention": {"type": "dsa", "q_heads": 4, "kv_heads": 1,
      "qk_dim": 8, "v_dim": 8, "scale": 0.5, "q_rank": 16, "mla": {"rank": 16}}}]},
  {"sublayers": [{"kind": "linear_attention", "linear_attention": {"kind": "gdn", "k_heads": 2, "v_heads": 4, "k_dim": 8,
      "v_dim": 8, "conv_kernel": 4}}]},
  {"sublayers": [{"kind": "mlp", "output": "join", "mlp": {"inner": 8}},
                 {"kind": "moe", "input": 0, "moe": {"experts": 8, "experts_per_token": 2, "inner": 8, "groups": 4,
                  "groups_per_token": 2}}], "scale": true}],
  "mtp": [{"layer": {"sublayers": [{"kind": "mlp", "mlp": {"inner": 8}}]}, "embed_norm": {"kind": "rms"}}]})";

std::string with(const std::string& from, const std::string& to) {
  std::string text = kRich;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

void expect_error(const std::string& json, const std::string& part) {
  const Result<ModelSpec> result = parse_model_spec(json);
  ASSERT_FALSE(result.ok()) << json;
  EXPECT_NE(result.status().message().find(part), std::string::npos) << result.status().message();
}

TEST(ModelSpecCheck, TheRichSpecIsReadAndComesBack) {
  const Result<ModelSpec> spec = parse_model_spec(kRich);
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  EXPECT_EQ(spec->layers[0].sublayers[0].attention.indexer.top_k, 4);
  EXPECT_EQ(spec->layers[3].sublayers[0].output, SublayerOutput::kJoin);
  EXPECT_TRUE(spec->layers[3].scale);
  ASSERT_EQ(spec->mtp.size(), 1u);
  EXPECT_EQ(spec->mtp[0].embed_norm.kind, NormKind::kRms);
  const Result<ModelSpec> again = parse_model_spec(model_spec_to_json(*spec));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(model_spec_to_json(*again), model_spec_to_json(*spec));
  EXPECT_TRUE(used_fields(*spec).count("mtp"));
}

TEST(ModelSpecCheck, ObjectsOfAnotherTypeAreUnknown) {
  expect_error(with(R"("type": "dsa", "q_heads": 4, "kv_heads": 1, "qk_dim": 8, "v_dim": 8,
      "scale")", R"("q_heads": 4, "kv_heads": 1, "qk_dim": 8, "v_dim": 8, "scale")"), "attention.indexer: unknown field");
  expect_error(with(R"("rope_dim": 4})", R"("rope_dim": 4}, "compressor": {"ratio": 4})"), "attention.compressor: unknown field");
  expect_error(with(R"("mla": {"rank": 16}})", R"("softcap": 1.0})"), "layers[1].sublayers[0].attention.mla: missing");
}

TEST(ModelSpecCheck, SelectionsComeFromSomewhere) {
  expect_error(with(R"("index_source": 0, )", ""), "layers[1].sublayers[0].attention.indexer: a sparse attention has an indexer");
  expect_error(with(R"("index_source": 0)", R"("index_source": 1)"), "layers[1].sublayers[0].index_source: 1 is not an earlier layer");
  expect_error(with(R"("top_k": 4)", R"("top_k": 0)"), "attention.indexer: a sparse attention has an indexer");
  expect_error(with(R"("q_rank": 16, "q_latent_norm")", R"("q_latent_norm")"), "attention.indexer.from_q_latent: the attention has no");
  expect_error(with(R"("rope": 1}}}]})", R"("rope": 2}}}]})"), "attention.indexer.rope: 2, but there are 2 rope_tables");
  expect_error(with(R"("heads": 2, "dim": 8)", R"("heads": 2, "dim": 3)"), "attention.indexer.rope: rotates elements up to 4 of a head of 3");
  expect_error(with(R"("kind": "mlp", "output")", R"("kv_source": 0, "kind": "mlp", "output")"), "kv_source: layer 0 has no keys");
}

TEST(ModelSpecCheck, SublayersReadAndWriteWhatExists) {
  expect_error(with(R"("input": 0)", R"("input": 1)"), "layers[3].sublayers[1].input: 1 is not an earlier sublayer");
  expect_error(with(R"("kind": "moe", "input")", R"("output": "join", "kind": "moe", "input")"), "sublayers[1].output: join needs a sublayer");
  expect_error(with(R"("kind": "moe", "input")", R"("residual": "hyper", "kind": "moe", "input")"), "residual: rule hyper goes with");
  expect_error(with(R"("hidden": 64)", R"("hidden": 64, "hyper": {"kind": "sinkhorn", "streams": 4})"), "residual: rule hyper goes with");
  expect_error(with(R"("groups_per_token": 2)", R"("groups_per_token": 5)"), "moe.groups_per_token: 5 of 4 groups");
  expect_error(with(R"("experts_per_token": 2)", R"("experts_per_token": 5)"), "moe.groups_per_token: 2 groups hold fewer than 5");
  expect_error(with(R"("groups": 4)", R"("groups": 4, "shared_gate": true)"), "moe.shared_inner: there is no shared expert");
}

TEST(ModelSpecCheck, HeadsAndSizesFit) {
  expect_error(with(R"("v_heads": 4)", R"("v_heads": 3)"), "linear_attention.v_heads: 3 is not a multiple of k_heads 2");
  expect_error(with(R"("conv_kernel": 4)", R"("conv_kernel": 0)"), "linear_attention.conv_kernel: at least 1");
  expect_error(with(R"("kind": "gdn")", R"("kind": "lightning")"), "linear_attention.decay: 0 rates for 4 heads");
  expect_error(with(R"("k_heads": 2, )", ""), "linear_attention: k_heads, v_heads, k_dim and v_dim");
  expect_error(with(R"("rope_dim": 4)", R"("rope_dim": 8)"), "attention.mla.rope_dim: 8 of qk_dim 8");
  expect_error(with(R"("q_rank": 16, "mla")", R"("q_rank": 16, "o_groups": 2, "mla")"), "attention.o_groups: o_groups and o_rank");
  expect_error(with(R"("q_rank": 16, "mla")", R"("chunk": 2, "mla")"), "attention.chunk: only a chunked attention");
  expect_error(with(R"("offset": 4)", R"("offset": 6)"), "attention.rope: rotates elements up to 10 of a head of 8");
}

}  // namespace
}  // namespace freetoken
