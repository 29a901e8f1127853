#include "weights/weight_table.h"

#include <gtest/gtest.h>

#include <random>

namespace freetoken {
namespace {

std::string table_of(const std::string& entry) {
  std::string json = R"({"files": ["/a", "/b"], "tensors": [)";
  return json.append(entry).append("]}");
}

const std::string kGood =
    R"({"name": "layers.0.0.q", "file": 1, "offset": 64, "bytes": 4352, "format": "q8_0", "shape": [64, 64],
        "source": "blk.0.attn_q.weight", "rotary_heads": 4})";

TEST(WeightTable, ReadsEveryField) {
  auto table = parse_weight_table(table_of(kGood));
  ASSERT_TRUE(table.ok()) << table.status().message();
  EXPECT_EQ(table->files, (std::vector<std::string>{"/a", "/b"}));
  ASSERT_EQ(table->tensors.size(), 1u);
  const WeightEntry& entry = table->tensors[0];
  EXPECT_EQ(entry.name, "layers.0.0.q");
  EXPECT_EQ(entry.file, 1);
  EXPECT_EQ(entry.offset, 64);
  EXPECT_EQ(entry.bytes, 4352);
  EXPECT_EQ(entry.format, WeightFormat::kQ8_0);
  EXPECT_EQ(entry.n, 64);
  EXPECT_EQ(entry.k, 64);
  EXPECT_EQ(entry.source, "blk.0.attn_q.weight");
  EXPECT_EQ(entry.rotary_heads, 4);
}

TEST(WeightTable, EveryFormatByName) {
  // name, k of one block, bytes of one block: ggml's definitions
  const std::tuple<const char*, int, int> formats[] = {{"f32", 1, 4},    {"f16", 1, 2},    {"bf16", 1, 2},   {"q8_0", 32, 34},
                                                       {"q4_0", 32, 18}, {"q4_1", 32, 20}, {"q6_k", 256, 210}};
  for (const auto& [name, k, bytes] : formats) {
    const std::string entry = std::string(R"({"name": "x", "file": 0, "offset": 0, "format": ")") + name + R"(", "shape": [3, )" +
                              std::to_string(2 * k) + R"(], "source": "s", "bytes": )" + std::to_string(6 * bytes) + "}";
    auto table = parse_weight_table(table_of(entry));
    EXPECT_TRUE(table.ok()) << name << ": " << table.status().message();
  }
}

struct Bad {
  std::string json, message;  // a part of the message
};

// kGood with one text replaced.
std::string with(const std::string& from, const std::string& to) {
  std::string entry = kGood;
  const size_t at = entry.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return table_of(entry.replace(at, from.size(), to));
}

TEST(WeightTable, BadTables) {
  const Bad cases[] = {
      {"", "not valid JSON"},
      {"{", "not valid JSON"},
      {"[]", "the table: expected an object, found array"},
      {"null", "the table: expected an object, found null"},
      {"{}", "field files is missing"},
      {R"({"files": ["/a"]})", "field tensors is missing"},
      {R"({"files": [], "tensors": []})", "files: expected a list of 1 to"},
      {R"({"files": ["/a"], "tensors": []})", "tensors: expected a list of 1 to"},
      {R"({"files": ["/a"], "tensors": [1]})", "tensors[0]: expected an object, found number"},
      {R"({"files": ["/a"], "tensors": {}})", "tensors: expected a list"},
      {R"({"files": [3], "tensors": [{}]})", "files[0]: expected a text"},
      {R"({"files": ["a"], "tensors": [{}]})", "files[0]: 'a' is not an absolute path"},
      {R"({"files": ["/a\u0000b"], "tensors": [{}]})", "the path has a zero byte"},
      {R"({"files": ["/a"], "tensors": [{}], "extra": 1})", "unknown field 'extra'"},
      {table_of("{}"), "tensors[0]: field name is missing"},
      {with("\"source\"", "\"sauce\""), "field source is missing"},
      {with("\"rotary_heads\": 4", "\"rotated\": 4"), "unknown field 'rotated'"},
      {with("\"file\": 1", "\"file\": 2"), "tensor 'layers.0.0.q'.file is 2; expected an integer from 0 to 1"},
      {with("\"file\": 1", "\"file\": -1"), "file is -1"},
      {with("\"file\": 1", "\"file\": 1.0"), "file is 1.0; expected an integer"},
      {with("\"file\": 1", "\"file\": \"1\""), "file is string; expected an integer"},
      {with("\"file\": 1", "\"file\": true"), "file is boolean; expected an integer"},
      {with("\"offset\": 64", "\"offset\": -64"), "offset is -64"},
      {with("\"offset\": 64", "\"offset\": 18446744073709551615"), "offset is 18446744073709551615"},
      {with("\"offset\": 64", "\"offset\": 9223372036854775807"), "offset is 9223372036854775807"},
      {with("\"offset\": 64", "\"offset\": 1e30"), "expected an integer"},
      {with("4352", "4351"), "has 4351 bytes, but 64 x 64 in q8_0 takes 4352"},
      {with("4352", "0"), "bytes is 0"},
      {with("q8_0", "q5_0"), "format 'q5_0' is not one of f32, f16, bf16, q8_0, q4_0, q4_1, q6_k"},
      {with("[64, 64]", "[]"), "shape: expected a list of 1 or 2 numbers"},
      {with("[64, 64]", "[1, 64, 64]"), "shape: expected a list of 1 or 2 numbers"},
      {with("[64, 64]", "64"), "shape: expected a list of 1 or 2 numbers"},
      {with("[64, 64]", "[0, 64]"), "shape[0] is 0"},
      {with("[64, 64]", "[64, 0]"), "shape[1] is 0"},
      {with("[64, 64]", "[64, 4294967296]"), "shape[1] is 4294967296"},
      {with("[64, 64]", "[64, 63]"), "63 columns are not a multiple of the 32 that a block of q8_0 holds"},
      {with("[64, 64]", "[4096]"), "a vector in format q8_0; vectors must be f32, f16 or bf16"},
      {with("\"rotary_heads\": 4", "\"rotary_heads\": 0"), "rotary_heads is 0"},
      {with("\"rotary_heads\": 4", "\"rotary_heads\": 3"), "64 rows do not divide into rotary pairs of 3 heads"},
      {with("\"rotary_heads\": 4", "\"rotary_heads\": 64"), "64 rows do not divide into rotary pairs of 64 heads"},
      {with("\"layers.0.0.q\"", "\"\""), "tensors[0].name: expected a text that is not empty"},
      {table_of(kGood + "," + kGood), "tensor 'layers.0.0.q' occurs twice"},
  };
  for (const Bad& c : cases) {
    auto table = parse_weight_table(c.json);
    ASSERT_FALSE(table.ok()) << c.json;
    EXPECT_EQ(table.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(table.status().message().find(c.message), std::string::npos)
        << "message: " << table.status().message() << "\nexpected: " << c.message;
  }
}

TEST(WeightTable, TheLargestShapeDoesNotOverflow) {
  static_assert(kMaxDimension == 268435456);
  auto table = parse_weight_table(with("[64, 64]", "[268435456, 268435456]"));
  ASSERT_FALSE(table.ok());
  // 2^28 rows of 2^28 / 32 blocks of 34 bytes
  EXPECT_NE(table.status().message().find("takes 76561193665298432"), std::string::npos) << table.status().message();
}

TEST(WeightTable, DamagedJsonIsAnErrorOrATable) {
  std::mt19937 random(9);
  const std::string good = table_of(kGood);
  int parsed = 0;
  for (int round = 0; round < 5000; round++) {
    std::string json = good;
    for (int i = int(random() % 3); i >= 0; i--) json[random() % json.size()] = char(random());
    if (random() % 4 == 0) json.resize(random() % json.size());
    parsed += parse_weight_table(json).ok();
  }
  EXPECT_LT(parsed, 5000);
}

TEST(WeightTable, DeepNestingIsAnError) {
  EXPECT_FALSE(parse_weight_table(std::string(1 << 20, '[')).ok());
  EXPECT_FALSE(parse_weight_table(std::string(1 << 18, '[') + std::string(1 << 18, ']')).ok());
}

}  // namespace
}  // namespace freetoken
