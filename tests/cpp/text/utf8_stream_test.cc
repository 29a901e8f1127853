// Oracle: a decoder written from the table of well-formed byte sequences of the Unicode standard (table 3-7) over the whole
// string, replacing each maximal ill-formed part. Its cases are checked against what Python's errors="replace" gives.
#include "text/utf8_stream.h"

#include <gtest/gtest.h>

#include <random>

#include "text/reference.h"

namespace freetoken {
namespace {

std::string stream_decode(const std::vector<std::string>& pieces) {
  Utf8Stream stream;
  std::string out;
  for (const auto& piece : pieces) stream.push(piece, &out);
  stream.finish(&out);
  return out;
}

struct Case {
  std::string bytes, text;
};

// Right-hand sides: bytes.decode("utf-8", "replace") of Python 3.11.
const Case kCases[] = {
    {"plain", "plain"},
    {"\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80"},
    {"\xF0\x9F\x98", "\uFFFD"},
    {"\xF0\x9F" "a", "\uFFFD" "a"},
    {"\x80\x80", "\uFFFD\uFFFD"},
    {"\xC0\xAF", "\uFFFD\uFFFD"},
    {"\xE0\x80\xAF", "\uFFFD\uFFFD\uFFFD"},
    {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
    {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
    {"\xF5\x80", "\uFFFD\uFFFD"},
    {"\xE2\x82\xE2\x82\xAC", "\uFFFD\u20AC"},
    {"\xF1\x80\x80\xC3\xA9", "\uFFFD\u00E9"},
    {"\xFF", "\uFFFD"},
    {std::string("\x00z", 2), std::string("\x00z", 2)},
};

TEST(Utf8Stream, KnownCases) {
  for (const Case& c : kCases) {
    EXPECT_EQ(stream_decode({c.bytes}), c.text);
    EXPECT_EQ(test::decode_replace(c.bytes), c.text) << "the reference itself";
  }
}

TEST(Utf8Stream, NothingOfAnIncompleteCharacterIsShown) {
  Utf8Stream stream;
  std::string out;
  stream.push("a\xF0\x9F", &out);
  EXPECT_EQ(out, "a");
  stream.push("\x98", &out);
  EXPECT_EQ(out, "a");
  stream.push("\x80", &out);
  EXPECT_EQ(out, "a\xF0\x9F\x98\x80");
}

TEST(Utf8Stream, AnInvalidByteIsShownAtOnce) {
  Utf8Stream stream;
  std::string out;
  stream.push("\xFF", &out);
  EXPECT_EQ(out, "\uFFFD");
  stream.push("\xE2\x28", &out);
  EXPECT_EQ(out, "\uFFFD\uFFFD(");
}

TEST(Utf8Stream, EverySplitGivesTheBatchResult) {
  std::mt19937 random(7);
  // Bytes near the borders of the ranges, so that valid, overlong, surrogate and truncated forms all occur.
  const std::string alphabet = "a\x7F\x80\x8F\x90\x9F\xA0\xBF\xC1\xC2\xDF\xE0\xE1\xED\xEE\xEF\xF0\xF1\xF4\xF5\xFF";
  for (int round = 0; round < 20000; round++) {
    std::string bytes;
    for (int i = int(random() % 12); i >= 0; i--) bytes.push_back(alphabet[random() % alphabet.size()]);
    const std::string expected = test::decode_replace(bytes);
    ASSERT_EQ(stream_decode(test::random_split(bytes, random)), expected);
    ASSERT_EQ(is_valid_utf8(bytes), expected == bytes);
  }
}

TEST(Utf8Stream, EveryTwoByteStart) {
  for (int a = 0; a < 256; a++)
    for (int b = 0; b < 256; b++) {
      const std::string bytes = {char(a), char(b), '\x80', '\x80'};
      ASSERT_EQ(stream_decode({bytes.substr(0, 1), bytes.substr(1)}), test::decode_replace(bytes)) << a << " " << b;
    }
}

}  // namespace
}  // namespace freetoken
