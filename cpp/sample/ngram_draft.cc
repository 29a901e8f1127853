#include "sample/ngram_draft.h"

#include <algorithm>
#include <random>

namespace freetoken {
namespace {

constexpr size_t kFirstSlots = 64;

// One per process: a prompt cannot be written to make keys collide. Which slot a key gets changes no draft.
uint64_t process_seed() {
  static const uint64_t seed = [] {
    std::random_device device;
    return uint64_t(device()) << 32 | device();
  }();
  return seed;
}

}  // namespace

NgramDraft::NgramDraft(int window_tokens)
    : window_(size_t(window_tokens)), hash_seed_(process_seed()), table_(kFirstSlots) {}

void NgramDraft::advance(std::span<const int32_t> tokens) {
  if (tokens.size() <= history_.size()) {
    for (const int32_t token : tokens) append(token);
    return;
  }
  // A prompt: indexed at once, with a table of the right size.
  if (tokens.size() >= window_) {
    tokens = tokens.last(window_);
    history_.clear();
  }
  history_.insert(history_.end(), tokens.begin(), tokens.end());
  reindex();
}

void NgramDraft::propose(int count, std::vector<int32_t>& draft) const {
  draft.clear();
  const size_t size = history_.size();
  for (int tokens = kMaxTokens; tokens >= kMinTokens; tokens--) {
    if (size < size_t(tokens)) continue;
    const uint32_t entry = table_[slot_of(size, tokens)];
    if (entry == 0) continue;
    const size_t next = entry >> 2;
    if (next - size_t(tokens) + window_ < size) continue;  // left the window
    for (size_t i = next; draft.size() < size_t(std::max(count, 0)); i++)
      draft.push_back(i < size ? history_[i] : draft[i - size]);
    return;
  }
}

void NgramDraft::append(int32_t token) {
  const bool full = history_.size() == 2 * window_;
  if (full) history_.erase(history_.begin(), history_.begin() + ptrdiff_t(window_));
  if (history_.size() == history_.capacity()) history_.reserve(std::min(2 * history_.size() + 64, 2 * window_));
  history_.push_back(token);
  if (full || 2 * (used_ + kMaxTokens) > table_.size()) {
    reindex();
  } else {
    index_next(history_.size() - 1);
  }
}

// Keys get their entry when they have a follower, so the end of the sequence never finds itself.
void NgramDraft::index_next(size_t next) {
  for (int tokens = kMinTokens; tokens <= kMaxTokens && size_t(tokens) <= next; tokens++) {
    uint32_t& entry = table_[slot_of(next, tokens)];
    if (entry == 0) used_++;
    entry = entry_of(next, tokens);
  }
}

// With room for as many tokens again, or for two windows.
void NgramDraft::reindex() {
  size_t slots = kFirstSlots;
  const size_t tokens = 2 * std::min(history_.size(), window_), keys = (kMaxTokens - kMinTokens + 1) * tokens;
  while (slots < 2 * (keys + kMaxTokens)) slots *= 2;
  table_.assign(slots, 0);
  used_ = 0;
  for (size_t next = kMinTokens; next < history_.size(); next++) index_next(next);
}

size_t NgramDraft::slot_of(size_t end, int tokens) const {
  const int32_t* key = history_.data() + end - size_t(tokens);
  uint64_t hash = hash_seed_ + uint64_t(tokens);
  for (int i = 0; i < tokens; i++) {
    hash = (hash ^ uint32_t(key[i])) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  }
  size_t slot = hash & (table_.size() - 1);
  for (;; slot = (slot + 1) & (table_.size() - 1)) {
    const uint32_t entry = table_[slot];
    if (entry == 0) return slot;
    if (int(entry & 3) + 1 != tokens) continue;
    if (std::equal(key, key + tokens, history_.data() + (entry >> 2) - tokens)) return slot;
  }
}

}  // namespace freetoken
