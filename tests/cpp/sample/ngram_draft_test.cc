// Oracle: a backward search through the whole sequence.
#include "sample/ngram_draft.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace freetoken {
namespace {

using Tokens = std::vector<int32_t>;

Tokens naive(const Tokens& history, int count, int window) {
  const int size = int(history.size());
  for (int n = 4; n >= 2; n--)
    for (int begin = size - n - 1; begin >= std::max(0, size - window); begin--) {
      if (!std::equal(history.end() - n, history.end(), history.begin() + begin)) continue;
      Tokens all = history;
      for (int i = 0; i < count; i++) all.push_back(all[size_t(begin + n + i)]);
      return Tokens(all.begin() + size, all.end());
    }
  return {};
}

Tokens propose(const NgramDraft& draft, int count) {
  Tokens tokens = {-1, -2};
  draft.propose(count, tokens);
  return tokens;
}

TEST(NgramDraft, FindsWhatABackwardSearchFinds) {
  std::mt19937 random(1);
  int found = 0, none = 0;
  for (int round = 0; round < 400; round++) {
    const int window = round % 2 ? 5 + int(random() % 60) : NgramDraft::kDefaultWindow;
    const int alphabet = 2 + int(random() % 30);
    NgramDraft draft(window);
    Tokens history;
    for (int step = 0; step < 60; step++) {
      Tokens tokens;
      for (unsigned i = random() % 12; i > 0; i--) {
        const bool repeats = history.size() > 20 && random() % 2;
        tokens.push_back(repeats ? history[history.size() - 20] : int32_t(random() % unsigned(alphabet)));
      }
      draft.advance(tokens);
      history.insert(history.end(), tokens.begin(), tokens.end());
      const int count = int(random() % 20);
      const Tokens expected = naive(history, count, window);
      ASSERT_EQ(propose(draft, count), expected) << "after " << history.size() << " tokens, window " << window;
      (expected.empty() ? none : found)++;
    }
  }
  EXPECT_GT(found, 2000);
  EXPECT_GT(none, 2000);
}

TEST(NgramDraft, LongestMatchThenLatest) {
  NgramDraft draft;
  draft.advance(Tokens{1, 2, 3, 4, 50, 9, 2, 3, 4, 51, 9, 3, 4, 52, 1, 2, 3, 4});
  EXPECT_EQ(propose(draft, 3), (Tokens{50, 9, 2})) << "four tokens match, though three did later";
  draft.advance(Tokens{60, 3, 4});
  EXPECT_EQ(propose(draft, 2), (Tokens{60, 3})) << "the latest of several";
}

TEST(NgramDraft, ALoopGoesOn) {
  NgramDraft draft;
  draft.advance(Tokens{7, 8, 9, 7, 8, 9, 7});
  EXPECT_EQ(propose(draft, 7), (Tokens{8, 9, 7, 8, 9, 7, 8}));
}

TEST(NgramDraft, NothingToFind) {
  NgramDraft draft;
  EXPECT_TRUE(propose(draft, 5).empty());
  draft.advance(Tokens{1});
  EXPECT_TRUE(propose(draft, 5).empty());
  draft.advance(Tokens{2, 1, 3, 1});
  EXPECT_TRUE(propose(draft, 5).empty()) << "one token is no match";
  draft.advance(Tokens{2, 1});
  EXPECT_TRUE(propose(draft, 0).empty());
  EXPECT_EQ(propose(draft, 1), Tokens{3});
}

// The same tokens in any pieces give the same drafts, also when a piece is longer than the window.
TEST(NgramDraft, PiecesDoNotMatter) {
  std::mt19937 random(2);
  Tokens history;
  for (int i = 0; i < 5000; i++) history.push_back(int32_t(random() % 40));
  NgramDraft whole(1000), pieces(1000);
  whole.advance(history);
  for (size_t i = 0; i < history.size(); i++) pieces.advance(std::span(history).subspan(i, 1));
  for (int i = 0; i < 200; i++) {
    const Tokens expected = naive(history, 8, 1000);
    ASSERT_EQ(propose(whole, 8), expected);
    ASSERT_EQ(propose(pieces, 8), expected);
    const Tokens next = {int32_t(random() % 40)};
    history.push_back(next[0]);
    whole.advance(next), pieces.advance(next);
  }
}

TEST(NgramDraft, MemoryIsBounded) {
  std::mt19937 random(3);
  constexpr int kWindow = 1 << 12;
  NgramDraft draft(kWindow);
  size_t most = 0;
  Tokens tokens(1000);
  for (int i = 0; i < 200; i++) {
    for (int32_t& token : tokens) token = int32_t(random() % 150000);
    draft.advance(tokens);
    most = std::max(most, draft.memory_bytes());
  }
  EXPECT_LE(most, size_t(kWindow) * (2 * 4 + 16 * 4)) << "two windows of tokens, 16 slots per token of the window";
}

}  // namespace
}  // namespace freetoken
