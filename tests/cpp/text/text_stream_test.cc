// Oracle: decode_replace and apply_stop of reference.h over the whole byte string at once.
#include "text/text_stream.h"

#include <gtest/gtest.h>

#include <random>

#include "text/reference.h"

namespace freetoken {
namespace {

struct Outcome {
  std::string text, match;
  std::vector<std::string> deltas;
};

// Every piece becomes a token of its own.
Outcome stream(const std::vector<std::string>& pieces, std::vector<std::string> stop) {
  Vocab vocab;
  vocab.bytes = pieces;
  vocab.flags.assign(pieces.size(), 0);
  TextStream text_stream(vocab, std::move(stop), false);
  Outcome outcome;
  bool stopped = false;
  for (size_t i = 0; i < pieces.size() && !stopped; i++) {
    outcome.deltas.emplace_back();
    stopped = text_stream.push(int32_t(i), &outcome.deltas.back());
  }
  outcome.deltas.emplace_back();
  text_stream.finish(&outcome.deltas.back());
  for (const auto& delta : outcome.deltas) outcome.text += delta;
  outcome.match = text_stream.stop_match();
  EXPECT_EQ(stopped || text_stream.stopped(), !outcome.match.empty());
  return outcome;
}

TEST(TextStream, CharacterOverTwoTokens) {
  const Outcome outcome = stream({"\xF0\x9F", "\x98\x80"}, {});
  EXPECT_EQ(outcome.deltas, (std::vector<std::string>{"", "\xF0\x9F\x98\x80", ""}));
}

TEST(TextStream, IncompleteTailIsOneReplacementCharacter) {
  EXPECT_EQ(stream({"a", "\xF0\x9F\x98"}, {}).deltas, (std::vector<std::string>{"a", "", "\uFFFD"}));
}

TEST(TextStream, StopOverTokensDoesNotLeak) {
  const Outcome outcome = stream({"alpha", " beta", " gam", "ma delta", " never"}, {"beta gamma"});
  EXPECT_EQ(outcome.text, "alpha ");
  EXPECT_EQ(outcome.match, "beta gamma");
  EXPECT_EQ(outcome.deltas.size(), 5u) << "stops at the fourth token";
}

TEST(TextStream, HeldBackTextIsDeliveredWhenItIsNotTheStop) {
  EXPECT_EQ(stream({"be", "t", "ter"}, {"beta"}).text, "better");
  EXPECT_EQ(stream({"be", "t"}, {"beta"}).deltas, (std::vector<std::string>{"", "", "bet"}));
}

TEST(TextStream, OverlapsOfAStopWithItself) {
  EXPECT_EQ(stream({"aa", "ab"}, {"aab"}).text, "a");
  EXPECT_EQ(stream({"abab", "ac"}, {"ababac"}).match, "ababac");
  EXPECT_EQ(stream({"\n", "\n", "\n", "x"}, {"\n\n\n"}).text, "");
}

TEST(TextStream, FirstCompleteStopWinsAndTiesGoToTheLongest) {
  EXPECT_EQ(stream({"xabcd"}, {"abcd", "bc"}).match, "bc");
  EXPECT_EQ(stream({"xab"}, {"b", "ab"}).match, "ab");
  EXPECT_EQ(stream({"xab"}, {"b", "ab"}).text, "x");
  EXPECT_EQ(stream({"ab", "c"}, {"abc", "ab"}).match, "ab");
}

TEST(TextStream, AFlushedReplacementCharacterMayCompleteAStop) {
  const Outcome outcome = stream({"a", "\xE2\x82"}, {"\uFFFD"});
  EXPECT_EQ(outcome.text, "a");
  EXPECT_EQ(outcome.match, "\uFFFD");
}

TEST(TextStream, SpecialAndUnusedTokens) {
  Vocab vocab;
  vocab.bytes = {"a", "<|end|>", "pad", "\xC3", "\xA9"};
  vocab.flags = {0, Vocab::kSpecial, Vocab::kUnused, 0, 0};
  for (const bool emit : {false, true}) {
    TextStream text_stream(vocab, {}, emit);
    std::string out;
    for (const int32_t token : {0, 1, 2, -1, 5, 1 << 30, 3, 4}) text_stream.push(token, &out);
    text_stream.finish(&out);
    EXPECT_EQ(out, emit ? "a<|end|>\u00E9" : "a\u00E9");
  }
  TextStream text_stream(vocab, {}, false);  // a control token does not break a character
  std::string out;
  for (const int32_t token : {3, 1, 4}) text_stream.push(token, &out);
  EXPECT_EQ(out, "\u00E9");
}

TEST(TextStream, NothingAfterTheStop) {
  Vocab vocab;
  vocab.bytes = {"stop", "more"};
  vocab.flags = {0, 0};
  TextStream text_stream(vocab, {"stop"}, false);
  std::string out;
  EXPECT_TRUE(text_stream.push(0, &out));
  EXPECT_TRUE(text_stream.push(1, &out));
  EXPECT_TRUE(text_stream.finish(&out));
  EXPECT_EQ(out, "");
}

TEST(TextStream, EverySplitGivesTheBatchResult) {
  std::mt19937 random(11);
  const std::vector<std::string> alphabet = {"a", "b", "c", "\n", "\u00E9", "\u20AC", "\xF0\x9F\x98\x80", "\xE2\x82", "\xFF"};
  int matches = 0;
  for (int round = 0; round < 20000; round++) {
    std::string bytes;
    for (int i = int(random() % 16); i >= 0; i--) bytes += alphabet[random() % alphabet.size()];
    std::vector<std::string> stop;
    for (int i = int(random() % 4); i > 0; i--) {
      std::string s;
      for (int j = int(random() % 4); j >= 0; j--) s += alphabet[random() % (alphabet.size() - 2)];
      stop.push_back(s);
    }
    const test::Stopped expected = test::apply_stop(test::decode_replace(bytes), stop);
    const Outcome outcome = stream(test::random_split(bytes, random), stop);
    ASSERT_EQ(outcome.text, expected.text);
    ASSERT_EQ(outcome.match, expected.match);
    for (const auto& delta : outcome.deltas) ASSERT_TRUE(is_valid_utf8(delta));
    matches += !expected.match.empty();
  }
  EXPECT_GT(matches, 4000) << "the property is exercised";
}

TEST(TextStream, NoMoreIsHeldBackThanTheLongestPossibleBeginning) {
  std::mt19937 random(5);
  for (int round = 0; round < 2000; round++) {
    std::string text;
    for (int i = 0; i < 12; i++) text.push_back("ab"[random() % 2]);
    const std::string stop = "abbab";
    StopMatcher matcher({stop});
    std::string out;
    if (matcher.push(text, &out)) continue;
    size_t held = 0;
    for (size_t n = 1; n < stop.size(); n++)
      if (text.compare(text.size() - n, n, stop, 0, n) == 0) held = n;
    ASSERT_EQ(out, text.substr(0, text.size() - held));
  }
}

TEST(StopStrings, Validation) {
  EXPECT_TRUE(validate_stop_strings({}).ok());
  EXPECT_TRUE(validate_stop_strings({"a", "\u20AC"}).ok());
  EXPECT_EQ(validate_stop_strings({"a", ""}).message(), "stop[1] is empty; leave it out");
  EXPECT_EQ(validate_stop_strings({"\xE2\x82"}).message(), "stop[0] is not valid UTF-8");
  EXPECT_FALSE(validate_stop_strings(std::vector<std::string>(kMaxStopStrings + 1, "a")).ok());
  EXPECT_FALSE(validate_stop_strings({std::string(kMaxStopBytes + 1, 'a')}).ok());
  EXPECT_TRUE(validate_stop_strings({std::string(kMaxStopBytes, 'a')}).ok());
}

TEST(StopStrings, WorkPerByteDoesNotGrowWithTheStop) {
  // 2 MB against the worst case for a rescanning matcher: every byte extends or breaks a long partial match. Quadratic
  // work would be 3e10 steps, which the time limit of a test case does not allow.
  const std::string text(2 << 20, 'a');
  StopMatcher matcher({std::string(kMaxStopBytes - 1, 'a') + "b"});
  std::string out;
  for (size_t at = 0; at < text.size(); at += 1024) matcher.push(std::string_view(text).substr(at, 1024), &out);
  EXPECT_EQ(out.size(), text.size() - (kMaxStopBytes - 1));
}

}  // namespace
}  // namespace freetoken
