// The strict reader and the canonical writer of the ModelSpec's JSON form. Expected values are written by hand.
#include <gtest/gtest.h>

#include <string>

#include "spec/model_spec.h"

namespace freetoken {
namespace {

const char kSmall[] = R"({"hidden": 8, "vocab": 32, "max_positions": 64, "final_norm": {"kind": "rms", "eps": 1e-5},
  "rope_tables": [{"inv_freq": [1.0, 0.01]}],
  "layers": [{"sublayers": [
    {"kind": "attention", "pre_norm": {"kind": "rms"},
     "attention": {"q_heads": 4, "kv_heads": 2, "qk_dim": 4, "v_dim": 4, "rope": 0, "scale": 0.5}},
    {"kind": "moe", "moe": {"experts": 4, "experts_per_token": 2, "inner": 16, "normalise": true}}]}]})";

std::string with(const std::string& from, const std::string& to) {
  std::string text = kSmall;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

void expect_error(const std::string& json, const std::string& part) {
  const Result<ModelSpec> result = parse_model_spec(json);
  ASSERT_FALSE(result.ok()) << json;
  EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(result.status().message().find(part), std::string::npos) << result.status().message();
}

TEST(ModelSpecJson, ReadsFieldsAndDefaults) {
  const Result<ModelSpec> result = parse_model_spec(kSmall);
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->hidden, 8);
  EXPECT_EQ(result->final_norm.kind, NormKind::kRms);
  EXPECT_EQ(result->final_norm.eps, 1e-5f);
  EXPECT_EQ(result->logit_scale, 1.0f);
  ASSERT_EQ(result->layers.size(), 1u);
  const SublayerSpec& attention = result->layers[0].sublayers[0];
  EXPECT_EQ(attention.kind, SublayerKind::kAttention);
  EXPECT_EQ(attention.pre_norm.eps, 1e-6f);
  EXPECT_EQ(attention.attention.scale, 0.5f);
  EXPECT_EQ(attention.attention.q_norm.kind, NormKind::kNone);
  const MoeSpec& moe = result->layers[0].sublayers[1].moe;
  EXPECT_EQ(moe.experts_per_token, 2);
  EXPECT_TRUE(moe.normalise);
  EXPECT_EQ(moe.scoring, RouterScoring::kSoftmax);
}

TEST(ModelSpecJson, WritesTheShortCanonicalForm) {
  const Result<ModelSpec> result = parse_model_spec(kSmall);
  ASSERT_TRUE(result.ok()) << result.status().message();
  const std::string json = model_spec_to_json(*result);
  EXPECT_EQ(json,
            R"({"final_norm":{"eps":1e-05,"kind":"rms"},"hidden":8,"layers":[{"sublayers":[)"
            R"({"attention":{"kv_heads":2,"q_heads":4,"qk_dim":4,"rope":0,"scale":0.5,"v_dim":4},"kind":"attention",)"
            R"("pre_norm":{"kind":"rms"}},)"
            R"({"kind":"moe","moe":{"experts":4,"experts_per_token":2,"inner":16,"normalise":true}}]}],)"
            R"("max_positions":64,"rope_tables":[{"inv_freq":[1.0,0.01]}],"vocab":32})");
  const Result<ModelSpec> again = parse_model_spec(json);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(model_spec_to_json(*again), json);
}

TEST(ModelSpecJson, RefusesUnknownFieldsWithTheirPath) {
  expect_error(with(R"("hidden": 8)", R"("hidden": 8, "hiden": 8)"), "hiden: unknown field");
  expect_error(with(R"("scale": 0.5)", R"("scale": 0.5, "scal": 1)"), "layers[0].sublayers[0].attention.scal: unknown field");
  expect_error(with(R"("inner": 16)", R"("inner": 16, "activation": {"kynd": 1})"),
               "layers[0].sublayers[1].moe.activation.kynd: unknown field");
  // an object of another kind of sublayer
  expect_error(with(R"("kind": "moe",)", R"("kind": "moe", "mlp": {"inner": 4},)"), "layers[0].sublayers[1].mlp: unknown field");
}

TEST(ModelSpecJson, RefusesMissingAndMistypedFields) {
  expect_error(with(R"("hidden": 8, )", ""), "hidden: missing");
  expect_error(with(R"("scale": 0.5)", R"("softcap": 0.5)"), "attention.scale: missing");
  expect_error(with(R"("hidden": 8)", R"("hidden": "8")"), "hidden: expected an integer, found string");
  expect_error(with(R"("hidden": 8)", R"("hidden": 8.5)"), "hidden: expected an integer, found 8.5");
  expect_error(with(R"("hidden": 8)", R"("hidden": null)"), "hidden: expected an integer, found null");
  expect_error(with(R"("normalise": true)", R"("normalise": 1)"), "moe.normalise: expected true or false, found number");
  expect_error(with(R"("scale": 0.5)", R"("scale": [])"), "attention.scale: expected a number, found array");
  expect_error(with(R"({"inv_freq": [1.0, 0.01]})", "7"), "rope_tables[0]: expected an object, found number");
  expect_error(with("[1.0, 0.01]", "[1.0, true]"), "rope_tables[0].inv_freq[1]: expected a number");
  expect_error(with(R"("kind": "moe")", R"("kind": "mow")"), "sublayers[1].kind: 'mow' is not one of attention, ");
  expect_error("[]", "top level: expected an object");
  expect_error("{", "not valid JSON");
  expect_error("", "not valid JSON");
}

TEST(ModelSpecJson, RefusesAbsurdNumbers) {
  expect_error(with(R"("hidden": 8)", R"("hidden": 1000001)"), "hidden: 1000001 is outside 1 to 1000000");
  expect_error(with(R"("hidden": 8)", R"("hidden": 0)"), "hidden: 0 is outside");
  expect_error(with(R"("hidden": 8)", R"("hidden": -8)"), "hidden: -8 is outside");
  expect_error(with(R"("hidden": 8)", R"("hidden": 18446744073709551615)"), "hidden: 18446744073709551615 is outside");
  expect_error(with(R"("hidden": 8)", R"("hidden": 99999999999999999999999)"), "hidden: expected an integer");
  expect_error(with(R"("vocab": 32)", R"("vocab": 16777217)"), "vocab: 16777217 is outside");
  expect_error(with(R"("experts": 4)", R"("experts": 65537)"), "moe.experts: 65537 is outside");
  expect_error(with(R"("eps": 1e-5)", R"("eps": 2)"), "final_norm.eps: 2 is outside 0 to 1");
  expect_error(with(R"("scale": 0.5)", R"("scale": 1e300)"), "attention.scale: 1e+300 is outside");
  expect_error(with(R"("scale": 0.5)", R"("scale": 1e999)"), "not valid JSON");
  std::string layers;
  for (int i = 0; i < 4097; ++i) layers += std::string(i == 0 ? "" : ",") + "{}";
  expect_error(R"({"hidden": 8, "vocab": 32, "max_positions": 64, "layers": [)" + layers + "]}",
               "layers: 4097 elements, allowed are 1 to 4096");
  expect_error(R"({"hidden": 8, "vocab": 32, "max_positions": 64, "layers": []})", "layers: 0 elements");
}

TEST(ModelSpecJson, RefusesFieldsThatDoNotFitTogether) {
  expect_error(with(R"("kv_heads": 2)", R"("kv_heads": 3)"), "layers[0].sublayers[0].attention.kv_heads: 3 does not divide");
  expect_error(with(R"("experts_per_token": 2)", R"("experts_per_token": 5)"), "moe.experts_per_token: 5 of 4 experts");
  expect_error(with(R"("rope": 0)", R"("rope": 1)"), "attention.rope: 1, but there are 1 rope_tables");
  expect_error(with("[1.0, 0.01]", "[1.0, 0.01, 0.001]"), "attention.rope: rotates elements up to 6 of a head of 4");
  expect_error(with(R"("inner": 16)", R"("inner": 16, "groups": 3)"), "moe.groups: 3 does not divide experts 4");
  expect_error(with(R"("inner": 16)", R"("inner": 16, "groups": 2, "groups_per_token": 3)"), "moe.groups_per_token: 3 of 2");
  expect_error(with(R"("rope": 0)", R"("rope": 0, "type": "window")"), "attention.window: a window attention needs");
  expect_error(with(R"("rope": 0)", R"("rope": 0, "window": 4)"), "attention.window: only a window attention");
}

TEST(ModelSpecJson, SurvivesDeepNesting) {
  expect_error(std::string(100000, '[') + std::string(100000, ']'), "top level: expected an object");
  expect_error(std::string(100000, '['), "not valid JSON");
}

}  // namespace
}  // namespace freetoken
