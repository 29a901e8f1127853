// Every expected ModelSpec of tests/data/specs/expected is read, and written back as the same text: the Python writer and the
// C++ writer have one canonical form. The files break lines between layers; their newlines are not part of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "spec/model_spec.h"

namespace freetoken {
namespace {

std::vector<std::filesystem::path> expected_files() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(FT_TEST_DATA "/specs/expected")) {
    if (entry.path().extension() == ".json") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::string read_without_newlines(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::erase(text, '\n');
  return text;
}

TEST(ExpectedSpecs, AllParseAndComeBackAsTheSameText) {
  const std::vector<std::filesystem::path> paths = expected_files();
  ASSERT_EQ(paths.size(), 78u);
  for (const std::filesystem::path& path : paths) {
    const std::string text = read_without_newlines(path);
    const Result<ModelSpec> spec = parse_model_spec(text);
    ASSERT_TRUE(spec.ok()) << path << ": " << spec.status().message();
    EXPECT_EQ(model_spec_to_json(*spec), text) << path;
  }
}

TEST(ExpectedSpecs, AnyOfThemWithAnUnknownFieldOrATruncationIsRefused) {
  for (const std::filesystem::path& path : expected_files()) {
    const std::string text = read_without_newlines(path);
    std::string extra = text;
    extra.insert(extra.find("\"kind\""), "\"no_such_field\":1,");
    const Result<ModelSpec> unknown = parse_model_spec(extra);
    ASSERT_FALSE(unknown.ok()) << path;
    EXPECT_NE(unknown.status().message().find("no_such_field: unknown field"), std::string::npos) << unknown.status().message();
    for (size_t parts = 1; parts < 8; ++parts) {
      EXPECT_FALSE(parse_model_spec(text.substr(0, text.size() * parts / 8)).ok()) << path << " " << parts;
    }
  }
}

TEST(ExpectedSpecs, UsedFieldsNameWhatIsBeyondTheDefaults) {
  const Result<ModelSpec> llama = parse_model_spec(read_without_newlines(FT_TEST_DATA "/specs/expected/llama.json"));
  ASSERT_TRUE(llama.ok());
  const std::set<std::string> plain = {"attention.rope", "final_norm.kind=rms", "kind=attention", "kind=mlp", "pre_norm.kind=rms"};
  EXPECT_EQ(used_fields(*llama), plain);
  const Result<ModelSpec> gpt_oss = parse_model_spec(read_without_newlines(FT_TEST_DATA "/specs/expected/gpt_oss.json"));
  ASSERT_TRUE(gpt_oss.ok());
  const std::set<std::string> used = used_fields(*gpt_oss);
  for (const char* name : {"attention.sinks", "attention.type=window", "attention.window", "moe.router_bias", "moe.expert_bias",
                           "moe.scoring=softmax_of_selected", "moe.activation.kind=swiglu_oai", "moe.activation.limit"}) {
    EXPECT_TRUE(used.count(name)) << name;
  }
  EXPECT_FALSE(used.count("mtp"));
}

}  // namespace
}  // namespace freetoken
