#include "kv/kv_cache.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "kv/prefix_tree.h"

namespace freetoken {
namespace {

int ceil_pages(int tokens, int page_tokens) { return (tokens + page_tokens - 1) / page_tokens; }

std::vector<uint8_t> keeps_everything(const std::vector<KvGroup>& groups) {
  std::vector<uint8_t> keep;
  for (const KvGroup& g : groups) keep.push_back(g.retention == Retention::kAll);
  return keep;
}

std::vector<PagePool> make_pools(const std::vector<int32_t>& pages) { return {pages.begin(), pages.end()}; }

}  // namespace

struct KvCache::State {
  explicit State(KvCacheOptions o)
      : options(std::move(o)),
        page_tokens(options.groups.at(0).page_tokens),
        pools(make_pools(options.pages)),
        tree(pools, keeps_everything(options.groups), page_tokens) {}

  int groups() const { return int(pools.size()); }
  bool windowed(int g) const { return options.groups[g].retention == Retention::kWindow; }
  // Pages wholly before this position cannot be attended by `at` or a later position.
  int first_visible(int g, int at) const { return windowed(g) ? std::max(0, at - options.groups[g].window + 1) : 0; }
  int available(int g) const { return pools[g].available() + tree.evictable(g); }
  // The first page of a match that its sequence holds: what a window needs, and what is there of the slack before it,
  // without a gap.
  size_t first_kept(int g, const PrefixTree::Match& match, int length) const {
    const int needed_from = first_visible(g, length - kMaxTruncateTokens) / page_tokens;
    int p = int(match.nodes.size());
    while (p > needed_from && match.nodes[p - 1]->pages[g] != kNoPage) p--;
    return size_t(p);
  }
  void drop(int g, int32_t* page) {
    if (*page != kNoPage) tree.unref(g, *page);
    *page = kNoPage;
  }
  // A page of the sequence's own. There is one available.
  int32_t take(int g) {
    while (pools[g].available() == 0) tree.evict(g);
    return pools[g].allocate();
  }

  // The longest match that every group can use; nodes and partial are cut to it.
  int usable_match(std::span<const int32_t> tokens, int limit, PrefixTree::Match* match) const;
  PrefixTree::Node* node_before(const SequenceKv& s, std::span<const int32_t> tokens, int index);
  void publish(SequenceKv* s, std::span<const int32_t> tokens, int computed);
  PrefixTree::Node* insert(SequenceKv* s, PrefixTree::Node* parent, std::span<const int32_t> tokens, int index);
  void release_windows(SequenceKv* s, int computed);

  KvCacheOptions options;
  int page_tokens;
  std::vector<PagePool> pools;
  PrefixTree tree;
  std::vector<PageCopy> copies;
  mutable int64_t lookups = 0;
  int64_t hit_tokens = 0;
};

KvCache::KvCache(KvCacheOptions options) : state_(std::make_unique<State>(std::move(options))) {}
KvCache::~KvCache() = default;

int KvCache::page_tokens() const { return state_->page_tokens; }
int KvCache::groups() const { return state_->groups(); }

bool KvCache::fits(int tokens) const {
  const State& st = *state_;
  for (int g = 0; g < st.groups(); g++) {
    int pages = ceil_pages(tokens, st.page_tokens);
    // A window, what may be truncated, the page that is being filled, and one to go on with.
    if (st.windowed(g))
      pages = std::min(pages, ceil_pages(st.options.groups[g].window + kMaxTruncateTokens, st.page_tokens) + 2);
    if (pages > st.pools[g].total()) return false;
  }
  return true;
}

int KvCache::available_tokens() const {
  int pages = state_->available(0);
  for (int g = 1; g < state_->groups(); g++) pages = std::min(pages, state_->available(g));
  return pages * state_->page_tokens;
}

int KvCache::State::usable_match(std::span<const int32_t> tokens, int limit, PrefixTree::Match* match) const {
  *match = tree.find(tokens, limit);
  int length = int(match->nodes.size()) * page_tokens + match->partial_tokens;
  auto node_at = [&](int index) { return index < int(match->nodes.size()) ? match->nodes[index] : match->partial; };
  // The last page of a window that is not there ends the match before it: no length up to its end could do without it.
  for (bool cut = true; cut && length > 0;) {
    cut = false;
    for (int g = 0; g < groups() && !cut; g++)
      for (int p = (length - 1) / page_tokens; p >= 0 && (p + 1) * page_tokens > first_visible(g, length) && !cut; p--)
        if (node_at(p)->pages[g] == kNoPage) length = p * page_tokens, cut = true;
  }
  if (length / page_tokens < int(match->nodes.size())) {
    match->partial = length % page_tokens ? match->nodes[length / page_tokens] : nullptr;
    match->nodes.resize(size_t(length / page_tokens));
  }
  match->partial_tokens = length % page_tokens;
  if (match->partial_tokens == 0) match->partial = nullptr;
  return length;
}

int KvCache::match_length(std::span<const int32_t> tokens, int limit) const {
  PrefixTree::Match match;
  return state_->options.prefix_cache ? state_->usable_match(tokens, limit, &match) : 0;
}

int KvCache::match(std::span<const int32_t> tokens, int limit, SequenceKv* sequence) {
  State& st = *state_;
  sequence->pages.assign(size_t(st.groups()), {});
  sequence->reserved_tokens = sequence->published_tokens = 0;
  st.lookups++;
  if (!st.options.prefix_cache) return 0;
  PrefixTree::Match match;
  int length = st.usable_match(tokens, limit, &match);
  // Room for the copy of the last page in every group, or the match ends before it. The pages of the match count as
  // available only if nobody else holds them, and will not be once the sequence does.
  if (match.partial) {
    for (int g = 0; g < st.groups() && match.partial; g++) {
      auto locks = [&](const PrefixTree::Node* node) {
        return node->pages[g] != kNoPage && st.pools[g].refs(node->pages[g]) == 1;
      };
      int locked = locks(match.partial);
      for (size_t p = st.first_kept(g, match, length); p < match.nodes.size(); p++) locked += locks(match.nodes[p]);
      if (st.available(g) - locked >= 1) continue;
      length = st.usable_match(tokens, length - match.partial_tokens, &match);
      if (match.partial) {  // a window cut it further, into the middle of a page again: not worth another page
        length = 0;
        match = {};
      }
    }
  }
  for (int g = 0; g < st.groups(); g++) {
    const size_t kept = st.first_kept(g, match, length);
    sequence->pages[g].assign(kept, kNoPage);
    for (size_t p = kept; p < match.nodes.size(); p++) {
      st.tree.ref(g, match.nodes[p]->pages[g]);
      sequence->pages[g].push_back(match.nodes[p]->pages[g]);
    }
  }
  if (match.partial) {
    // Held while room is made for the copies, or it might be evicted for them.
    for (int g = 0; g < st.groups(); g++)
      if (match.partial->pages[g] != kNoPage) st.tree.ref(g, match.partial->pages[g]);
    for (int g = 0; g < st.groups(); g++) {
      const int32_t from = match.partial->pages[g];
      const int32_t to = st.take(g);
      st.copies.push_back({g, from, to});
      sequence->pages[g].push_back(to);
      st.tree.unref(g, from);
    }
  }
  sequence->published_tokens = int(match.nodes.size()) * st.page_tokens;
  sequence->reserved_tokens = int(sequence->pages[0].size()) * st.page_tokens;
  st.hit_tokens += length;
  return length;
}

bool KvCache::append(SequenceKv* sequence, int from_tokens, int to_tokens) {
  State& st = *state_;
  if (sequence->pages.empty()) sequence->pages.assign(size_t(st.groups()), {});
  const int first = from_tokens / st.page_tokens, end = ceil_pages(to_tokens, st.page_tokens);
  const int have = int(sequence->pages[0].size());
  auto shared = [&](int g, int p) {
    const int32_t page = sequence->pages[g][p];
    return page != kNoPage && st.pools[g].refs(page) > 1;
  };
  bool copies = false;
  for (int g = 0; g < st.groups(); g++) {
    int needed = std::max(0, end - have);
    for (int p = first; p < std::min(end, have); p++) needed += shared(g, p), copies |= shared(g, p);
    if (needed > st.available(g)) return false;
  }
  if (end <= have && !copies) return true;
  for (int g = 0; g < st.groups(); g++) {
    std::vector<int32_t>& pages = sequence->pages[g];
    for (int p = first; p < std::min(end, have); p++) {
      if (!shared(g, p)) continue;
      const int32_t page = st.take(g);
      st.copies.push_back({g, pages[p], page});
      st.tree.unref(g, pages[p]);
      pages[p] = page;
    }
    while (int(pages.size()) < end) pages.push_back(st.take(g));
  }
  sequence->published_tokens = std::min(sequence->published_tokens, first * st.page_tokens);
  sequence->reserved_tokens = int(sequence->pages[0].size()) * st.page_tokens;
  return true;
}

// The node of the page before page `index`: found through a page the sequence holds, else by its tokens.
PrefixTree::Node* KvCache::State::node_before(const SequenceKv& s, std::span<const int32_t> tokens, int index) {
  if (index == 0) return nullptr;
  for (int g = 0; g < groups(); g++)
    if (s.pages[g][index - 1] != kNoPage)
      if (PrefixTree::Node* node = tree.owner(g, s.pages[g][index - 1])) return node;
  const PrefixTree::Match match = tree.find(tokens, index * page_tokens);
  return int(match.nodes.size()) == index ? match.nodes.back() : nullptr;
}

void KvCache::State::publish(SequenceKv* s, std::span<const int32_t> tokens, int computed) {
  if (!options.prefix_cache || s->published_tokens + page_tokens > computed) return;
  PrefixTree::Node* parent = node_before(*s, tokens, s->published_tokens / page_tokens);
  if (s->published_tokens > 0 && !parent) return;  // what came before is no longer in the tree
  while (s->published_tokens + page_tokens <= computed) {
    parent = insert(s, parent, tokens.subspan(size_t(s->published_tokens), size_t(page_tokens)),
                    s->published_tokens / page_tokens);
    if (!parent) return;
    s->published_tokens += page_tokens;
  }
}

// Puts page `index` into the tree. Null where it cannot be: the sequence no longer has it, nor has the tree.
PrefixTree::Node* KvCache::State::insert(SequenceKv* s, PrefixTree::Node* parent, std::span<const int32_t> tokens,
                                         int index) {
  std::vector<int32_t> mine;
  for (int g = 0; g < groups(); g++) mine.push_back(s->pages[g][index]);
  if (std::all_of(mine.begin(), mine.end(), [](int32_t page) { return page == kNoPage; }))
    return tree.child(parent, tokens);
  PrefixTree::Node* node = tree.insert(parent, tokens, mine);
  for (int g = 0; g < groups(); g++) s->pages[g][index] = mine[g];
  return node;
}

void KvCache::State::release_windows(SequenceKv* s, int computed) {
  for (int g = 0; g < groups(); g++) {
    if (!windowed(g)) continue;
    const int end = first_visible(g, computed - kMaxTruncateTokens) / page_tokens;  // pages wholly before
    for (int p = std::min(end, int(s->pages[g].size())) - 1; p >= 0 && s->pages[g][p] != kNoPage; p--)
      drop(g, &s->pages[g][p]);
  }
}

void KvCache::commit(SequenceKv* sequence, std::span<const int32_t> tokens, int computed) {
  state_->publish(sequence, tokens, computed);
  state_->release_windows(sequence, computed);
}

void KvCache::truncate(SequenceKv* sequence, int to) {
  State& st = *state_;
  const size_t pages = size_t(ceil_pages(to, st.page_tokens));
  for (int g = 0; g < st.groups() && !sequence->pages.empty(); g++)
    while (sequence->pages[g].size() > pages) {
      st.drop(g, &sequence->pages[g].back());
      sequence->pages[g].pop_back();
    }
  sequence->reserved_tokens = std::min(sequence->reserved_tokens, int(pages) * st.page_tokens);
}

void KvCache::release(SequenceKv* sequence, std::span<const int32_t> tokens, int computed) {
  State& st = *state_;
  if (computed > 0) {
    st.publish(sequence, tokens, computed);
    const int p = computed / st.page_tokens, count = computed % st.page_tokens;
    PrefixTree::Node* parent = p > 0 && count > 0 ? st.node_before(*sequence, tokens, p) : nullptr;
    if (st.options.prefix_cache && count > 0 && sequence->published_tokens == p * st.page_tokens && (p == 0 || parent))
      st.insert(sequence, parent, tokens.subspan(size_t(p) * st.page_tokens, size_t(count)), p);
  }
  for (int g = 0; g < int(sequence->pages.size()); g++)
    for (int32_t& page : sequence->pages[g]) st.drop(g, &page);
  *sequence = {};
}

KvSnapshot KvCache::snapshot(const SequenceKv& sequence, int at) {
  State& st = *state_;
  KvSnapshot snapshot{at, {}};
  const int pages = ceil_pages(at, st.page_tokens);
  for (int g = 0; g < st.groups(); g++) {
    const int needed_from = st.first_visible(g, at);
    std::vector<int32_t>& list = snapshot.pages.emplace_back();
    for (int p = 0; p < pages; p++) {
      int32_t page = sequence.pages[g][p];
      if ((p + 1) * st.page_tokens <= needed_from) page = kNoPage;
      if (page != kNoPage) st.tree.ref(g, page);
      list.push_back(page);
    }
  }
  return snapshot;
}

bool KvCache::restore(const KvSnapshot& snapshot, SequenceKv* sequence) {
  State& st = *state_;
  sequence->pages = snapshot.pages;
  for (int g = 0; g < st.groups(); g++)
    for (int32_t page : sequence->pages[g])
      if (page != kNoPage) st.tree.ref(g, page);
  sequence->reserved_tokens = int(sequence->pages[0].size()) * st.page_tokens;
  sequence->published_tokens = 0;
  return true;
}

void KvCache::release(KvSnapshot* snapshot) {
  for (int g = 0; g < int(snapshot->pages.size()); g++)
    for (int32_t& page : snapshot->pages[g]) state_->drop(g, &page);
  *snapshot = {};
}

std::vector<SpillItem> KvCache::gather_for_spill(const SequenceKv& sequence, int tokens) const {
  const State& st = *state_;
  std::vector<SpillItem> items;
  for (int g = 0; g < st.groups(); g++)
    for (int p = 0; p * st.page_tokens < tokens; p++)
      if ((p + 1) * st.page_tokens > st.first_visible(g, tokens))
        items.push_back({g, p, sequence.pages[g][p], std::min(st.page_tokens, tokens - p * st.page_tokens)});
  return items;
}

std::vector<PageCopy> KvCache::take_copies() { return std::exchange(state_->copies, {}); }
void KvCache::clear_cache() { state_->tree.clear(); }

KvCacheStats KvCache::stats() const {
  KvCacheStats stats;
  for (int g = 0; g < state_->groups(); g++) {
    stats.pages_total.push_back(state_->pools[g].total());
    stats.pages_free.push_back(state_->pools[g].available());
    stats.pages_cached.push_back(state_->tree.evictable(g));
  }
  stats.lookups = state_->lookups;
  stats.hit_tokens = state_->hit_tokens;
  stats.evicted_pages = state_->tree.evicted_pages();
  return stats;
}

std::string KvCache::check(std::span<const SequenceKv* const> sequences,
                           std::span<const KvSnapshot* const> snapshots) const {
  const State& st = *state_;
  std::string wrong = st.tree.check();
  for (int g = 0; g < st.groups(); g++) {
    std::vector<int> held(size_t(st.pools[g].total()), 0);
    auto count = [&](const std::vector<std::vector<int32_t>>& pages) {
      if (pages.empty()) return;
      for (int32_t page : pages[g])
        if (page != kNoPage) held[page]++;
    };
    for (const SequenceKv* s : sequences) count(s->pages);
    for (const KvSnapshot* s : snapshots) count(s->pages);
    int free = 0;
    for (int32_t page = 0; page < st.pools[g].total(); page++) {
      held[page] += st.tree.owner(g, page) != nullptr;
      free += held[page] == 0;
      if (held[page] != st.pools[g].refs(page))
        wrong += "group " + std::to_string(g) + " page " + std::to_string(page) + " is held " +
                 std::to_string(held[page]) + " times, counted " + std::to_string(st.pools[g].refs(page)) + "; ";
    }
    if (free != st.pools[g].available())
      wrong += "group " + std::to_string(g) + " has " + std::to_string(free) + " pages nobody holds, " +
               std::to_string(st.pools[g].available()) + " in its free list; ";
  }
  return wrong;
}

}  // namespace freetoken
