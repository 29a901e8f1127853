// Drafts from a sequence's own past: what followed the last few tokens the last time they occurred.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace freetoken {

// Looks for the last 4 tokens, else the last 3, else the last 2, and takes their latest earlier occurrence within the
// last `window_tokens` tokens. O(1) per token; memory is bounded by the window (at the default 0.5 MB of tokens and 4
// MB of index, and less for a shorter sequence). For accepted tokens only: there is no way back.
class NgramDraft {
 public:
  static constexpr int kMinTokens = 2, kMaxTokens = 4;  // that must match
  static constexpr int kDefaultWindow = 1 << 16;

  // window_tokens in [kMaxTokens + 1, 2^28].
  explicit NgramDraft(int window_tokens = kDefaultWindow);

  // These tokens, >= 0, continue the sequence.
  void advance(std::span<const int32_t> tokens);

  // The next `count` tokens as they followed that occurrence; past the end of the sequence the draft continues with
  // itself, which is how a loop goes on. Replaces `draft`: `count` tokens, or none where there is no occurrence.
  void propose(int count, std::vector<int32_t>& draft) const;

  size_t memory_bytes() const { return history_.capacity() * sizeof(int32_t) + table_.capacity() * sizeof(uint32_t); }

 private:
  // An entry: the place of the token that followed, times 4, plus the number of tokens before it that make the key,
  // less 1. Never 0, which is an empty slot.
  static uint32_t entry_of(size_t next, int tokens) { return uint32_t(next) << 2 | uint32_t(tokens - 1); }

  void append(int32_t token);
  void index_next(size_t next);
  void reindex();
  // The slot of the key of `tokens` tokens before history_[end], or the empty one where it would go.
  size_t slot_of(size_t end, int tokens) const;

  size_t window_;
  uint64_t hash_seed_;
  std::vector<int32_t> history_;  // the last window_ tokens and at most as many before them
  std::vector<uint32_t> table_;   // open addressing, a power of two of slots, at most half of them used
  size_t used_ = 0;
};

}  // namespace freetoken
