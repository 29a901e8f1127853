// KvCache: which pages hold which tokens of which sequence, and what of it can be used again.
//
// Every KV group has a pool of pages of page_tokens positions. A sequence holds one list of pages per group; entry i
// covers positions [i * page_tokens, (i + 1) * page_tokens). Pages are counted references: the prefix tree, snapshots
// and sequences may hold the same page, and whoever is about to write a page that others hold gets a copy of it first.
// Bytes are never touched here: what must be copied is handed to the caller as PageCopy.
//
// Window groups (Retention::kWindow) give pages back that no later position can attend to; their entry is then kNoPage.
// Not thread-safe (engine thread).
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kv/page_pool.h"
#include "ops/kv_group.h"

namespace freetoken {

constexpr int32_t kNoPage = -1;
// A sequence can be truncated by this many tokens below what was committed: rejected drafts. Window groups keep the
// pages.
constexpr int kMaxTruncateTokens = 16;

// The pages of one sequence. Made by KvCache, released through it.
struct SequenceKv {
  std::vector<std::vector<int32_t>> pages;  // per group
  int reserved_tokens = 0;                  // positions below have a page (window groups: that can still be attended)
  int published_tokens = 0;                 // positions below are in the tree, whole pages
};

// The state of a sequence at one position; holds references until released.
struct KvSnapshot {
  int tokens = 0;
  std::vector<std::vector<int32_t>> pages;  // per group; kNoPage where a window group no longer needs it
};

// What must be stored to bring a state back elsewhere: page-wise, only the positions that can still be attended.
struct SpillItem {
  int group = 0;
  int page_index = 0;  // position / page_tokens
  int32_t page = 0;
  int tokens = 0;      // of this page, from its start
};

struct KvCacheOptions {
  std::vector<KvGroup> groups;
  std::vector<int32_t> pages;   // per group
  bool prefix_cache = true;     // false: nothing is kept of finished sequences
};

struct KvCacheStats {
  std::vector<int> pages_total, pages_free, pages_cached;  // per group; cached = held by the tree alone, free on demand
  int64_t lookups = 0, hit_tokens = 0, evicted_pages = 0;
};

class KvCache {
 public:
  explicit KvCache(KvCacheOptions options);
  ~KvCache();

  int page_tokens() const;
  int groups() const;
  // Could a sequence of so many tokens be held if it were alone? (Window groups: window + slack is enough.)
  bool fits(int tokens) const;
  // Pages that an append could take right now in every group: free ones and those it may evict, the least over groups
  // counted in tokens.
  int available_tokens() const;

  // Makes `sequence` (empty before) share the longest cached prefix of tokens[0, limit), token-exact: the page in which
  // the match ends is copied. Returns the number of positions that need no computation.
  int match(std::span<const int32_t> tokens, int limit, SequenceKv* sequence);
  // Length that match() would return; changes nothing, not even recency.
  int match_length(std::span<const int32_t> tokens, int limit) const;

  // Gives the sequence pages for all positions below to_tokens, of its own where they will be written (positions
  // >= from_tokens). Evicts cached pages as needed. False, and nothing changed, when there are not enough.
  bool append(SequenceKv* sequence, int from_tokens, int to_tokens);
  // Positions below `computed` are final and in the cache on the device: publishes whole pages in the tree, lets go of
  // pages that fell out of the windows. Where the tree has the same page already, the sequence goes on with the tree's
  // and its own is free: the same text takes its pages once, however many sequences compute it at the same time.
  void commit(SequenceKv* sequence, std::span<const int32_t> tokens, int computed);
  // Gives back pages beyond `to`: at most kMaxTruncateTokens below what was committed, and not below where the sequence
  // was matched or restored.
  void truncate(SequenceKv* sequence, int to);
  // Ends the sequence: its `computed` tokens stay in the tree as far as the cache keeps prefixes, the partial last page
  // too. computed may be 0 (nothing of it is worth keeping).
  void release(SequenceKv* sequence, std::span<const int32_t> tokens, int computed);

  // `at` is not below where the sequence was matched or restored: what a window needs before that may not be there.
  KvSnapshot snapshot(const SequenceKv& sequence, int at);
  // A new sequence that starts from the snapshot; shares its pages, writes copies. False when there is no page for one.
  bool restore(const KvSnapshot& snapshot, SequenceKv* sequence);
  void release(KvSnapshot* snapshot);
  std::vector<SpillItem> gather_for_spill(const SequenceKv& sequence, int tokens) const;

  // Copies made necessary since the last call, in the order they must be done; the caller enqueues them
  // (Ops::copy_pages) before the next step.
  std::vector<PageCopy> take_copies();
  // Drops all of the tree that nobody uses.
  void clear_cache();
  KvCacheStats stats() const;
  // Every invariant of pools, tree and counts, for tests: empty when all hold, else what does not. `live` are all
  // sequences and snapshots that exist.
  std::string check(std::span<const SequenceKv* const> sequences, std::span<const KvSnapshot* const> snapshots) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace freetoken
