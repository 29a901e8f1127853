#include "kv/prefix_tree.h"

#include "kv/kv_cache.h"

namespace freetoken {
namespace {

int common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  return int(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace

PrefixTree::PrefixTree(std::vector<PagePool>& pools, std::vector<uint8_t> keep_nodes, int page_tokens)
    : pools_(pools),
      keep_nodes_(std::move(keep_nodes)),
      page_tokens_(page_tokens),
      evictable_(pools.size(), 0),
      droppable_(pools.size()) {
  for (const PagePool& pool : pools) owner_.emplace_back(size_t(pool.total()), nullptr);
}

// One by one: a chain as deep as a long text has pages would be destroyed recursively.
PrefixTree::~PrefixTree() {
  std::vector<std::unique_ptr<Node>> rest;
  auto take_children = [&](Node& node) {
    for (auto& [tokens, child] : node.children) rest.push_back(std::move(child));
    node.children.clear();
  };
  for (take_children(root_); !rest.empty();) {
    const std::unique_ptr<Node> node = std::move(rest.back());
    rest.pop_back();
    take_children(*node);
  }
}

bool PrefixTree::sole(int group, int32_t page) const { return page != kNoPage && pools_[group].refs(page) == 1; }

// A leaf whose pages are all the tree's alone.
bool PrefixTree::removable(const Node& node) const {
  if (!node.children.empty()) return false;
  for (size_t g = 0; g < pools_.size(); g++)
    if (node.pages[g] != kNoPage && !sole(int(g), node.pages[g])) return false;
  return true;
}

void PrefixTree::forget(Node& node) {
  leaves_.erase({node.tick, &node});
  for (size_t g = 0; g < pools_.size(); g++)
    if (!keep_nodes_[g]) droppable_[g].erase({node.tick, &node});
}

void PrefixTree::remember(Node& node) {
  if (removable(node)) leaves_.emplace(node.tick, &node);
  for (size_t g = 0; g < pools_.size(); g++)
    if (!keep_nodes_[g] && sole(int(g), node.pages[g])) droppable_[g].emplace(node.tick, &node);
}

PrefixTree::Match PrefixTree::find(std::span<const int32_t> tokens, int limit) const {
  Match match;
  std::span<const int32_t> rest = tokens.first(size_t(limit));
  for (const Node* node = &root_;;) {
    if (int(rest.size()) >= page_tokens_) {
      if (const auto it = node->children.find(rest.first(size_t(page_tokens_))); it != node->children.end()) {
        node = it->second.get();
        match.nodes.push_back(it->second.get());
        rest = rest.subspan(size_t(page_tokens_));
        continue;
      }
    }
    const auto after = node->children.lower_bound(rest);
    auto consider = [&](Node* child) {
      const int common = common_prefix(child->tokens, rest);
      if (common > match.partial_tokens) match.partial = child, match.partial_tokens = common;
    };
    if (after != node->children.end()) consider(after->second.get());
    if (after != node->children.begin()) consider(std::prev(after)->second.get());
    return match;
  }
}

PrefixTree::Node* PrefixTree::child(Node* parent, std::span<const int32_t> tokens) const {
  const Node& above = parent ? *parent : root_;
  const auto it = above.children.find(tokens);
  return it != above.children.end() ? it->second.get() : nullptr;
}

PrefixTree::Node* PrefixTree::insert(Node* parent, std::span<const int32_t> tokens, std::span<int32_t> pages) {
  if (!parent) parent = &root_;
  const auto after = parent->children.lower_bound(tokens);
  Node* node = nullptr;
  if (after != parent->children.end()) {
    Node* next = after->second.get();
    if (common_prefix(tokens, next->tokens) == int(tokens.size())) {
      if (next->tokens.size() > tokens.size()) return nullptr;
      node = next;
    }
  }
  tick_++;
  if (!node) {
    auto made = std::make_unique<Node>();
    node = made.get();
    node->parent = parent;
    node->tokens.assign(tokens.begin(), tokens.end());
    node->pages.assign(pools_.size(), kNoPage);
    if (parent != &root_) forget(*parent);
    parent->children.emplace(std::span<const int32_t>(node->tokens), std::move(made));
    if (parent != &root_) remember(*parent);
  } else {
    forget(*node);
  }
  node->tick = tick_;
  // Before the pages are taken over: one of them may be that of such a leaf, written further since.
  remove_prefixes(*parent, tokens);
  for (size_t g = 0; g < pools_.size(); g++) {
    int32_t& mine = pages[g];
    if (mine == kNoPage || mine == node->pages[g]) continue;
    if (node->pages[g] == kNoPage) {  // the tree takes the sequence's
      node->pages[g] = mine;
      owner_[g][mine] = node;
      pools_[g].ref(mine);
    } else {  // the sequence takes the tree's
      if (sole(int(g), node->pages[g])) evictable_[g]--;
      pools_[g].ref(node->pages[g]);
      pools_[g].unref(mine);
      mine = node->pages[g];
    }
  }
  remember(*node);
  return node;
}

// Leaves whose tokens are the beginning of `tokens` hold nothing that the node of `tokens` does not. Whoever else holds
// their pages keeps them.
void PrefixTree::remove_prefixes(Node& parent, std::span<const int32_t> tokens) {
  for (std::span<const int32_t> key = tokens;;) {
    auto it = parent.children.lower_bound(key);
    if (it == parent.children.begin()) return;
    Node* before = std::prev(it)->second.get();
    const int common = common_prefix(before->tokens, key);
    if (common == 0) return;
    if (common == int(before->tokens.size())) {
      key = key.first(size_t(common));
      remove(before);
    } else {
      key = key.first(size_t(common));
      // A child with exactly these tokens is not below its own lower bound.
      if (const auto exact = parent.children.find(key); exact != parent.children.end()) remove(exact->second.get());
    }
  }
}

void PrefixTree::ref(int group, int32_t page) {
  Node* node = owner_[group][page];
  if (!node) return pools_[group].ref(page);
  if (pools_[group].refs(page) == 1) {
    forget(*node);
    evictable_[group]--;
    pools_[group].ref(page);
    remember(*node);
    return;
  }
  pools_[group].ref(page);
}

void PrefixTree::unref(int group, int32_t page) {
  Node* node = owner_[group][page];
  if (!node || pools_[group].refs(page) != 2) {
    pools_[group].unref(page);
    return;
  }
  forget(*node);
  pools_[group].unref(page);
  evictable_[group]++;
  node->tick = ++tick_;  // in use until now
  remember(*node);
}

// The node is in no order of age.
void PrefixTree::drop_page(Node& node, int group) {
  const int32_t page = node.pages[group];
  if (page == kNoPage) return;
  owner_[group][page] = nullptr;
  node.pages[group] = kNoPage;
  if (pools_[group].refs(page) == 1) evictable_[group]--;
  pools_[group].unref(page);
}

void PrefixTree::remove(Node* leaf) {
  forget(*leaf);
  for (size_t g = 0; g < pools_.size(); g++) drop_page(*leaf, int(g));
  Node* parent = leaf->parent;
  if (parent != &root_) forget(*parent);
  parent->children.erase(std::span<const int32_t>(leaf->tokens));
  if (parent == &root_) return;
  remember(*parent);
  remove_if_empty(parent);
}

void PrefixTree::remove_if_empty(Node* node) {
  if (node->children.empty() &&
      std::all_of(node->pages.begin(), node->pages.end(), [](int32_t p) { return p == kNoPage; }))
    remove(node);
}

void PrefixTree::evict(int group) {
  if (keep_nodes_[group]) {
    Node* leaf = leaves_.begin()->second;
    evicted_pages_ +=
        std::count_if(leaf->pages.begin(), leaf->pages.end(), [](int32_t page) { return page != kNoPage; });
    return remove(leaf);
  }
  Node* node = droppable_[group].begin()->second;
  evicted_pages_++;
  forget(*node);
  drop_page(*node, group);
  remember(*node);
  remove_if_empty(node);
}

void PrefixTree::clear() {
  while (!leaves_.empty()) remove(leaves_.begin()->second);
}

template <class F>
void PrefixTree::each_node(const Node& node, const F& visit) const {
  for (const auto& [tokens, child] : node.children) {
    visit(*child);
    each_node(*child, visit);
  }
}

std::string PrefixTree::check() const {
  std::string wrong;
  std::vector<int> evictable(pools_.size(), 0), owned(pools_.size(), 0);
  size_t leaves = 0;
  std::vector<size_t> droppable(pools_.size(), 0);
  each_node(root_, [&](const Node& node) {
    bool empty = node.children.empty();
    for (size_t g = 0; g < pools_.size(); g++) {
      const int32_t page = node.pages[g];
      if (page == kNoPage) continue;
      empty = false;
      owned[g]++;
      if (owner_[g][page] != &node) wrong += "page " + std::to_string(page) + " has another owner; ";
      if (sole(int(g), page)) evictable[g]++;
      if (!keep_nodes_[g] && sole(int(g), page))
        droppable[g] += droppable_[g].count({node.tick, const_cast<Node*>(&node)});
    }
    if (empty) wrong += "an empty leaf; ";
    if (int(node.tokens.size()) < page_tokens_ && !node.children.empty()) wrong += "a partial page has children; ";
    if (const auto next = node.parent->children.upper_bound(std::span<const int32_t>(node.tokens));
        next != node.parent->children.end() &&
        common_prefix(node.tokens, next->second->tokens) == int(node.tokens.size()))
      wrong += "a leaf is the beginning of another node; ";
    if (removable(node)) leaves++;
    if (removable(node) != (leaves_.count({node.tick, const_cast<Node*>(&node)}) > 0))
      wrong += "a leaf is not in order of age; ";
  });
  if (leaves != leaves_.size())
    wrong += "removable leaves: " + std::to_string(leaves) + ", known " + std::to_string(leaves_.size()) + "; ";
  for (size_t g = 0; g < pools_.size(); g++) {
    if (evictable[g] != evictable_[g])
      wrong += "evictable: " + std::to_string(evictable[g]) + ", known " + std::to_string(evictable_[g]) + "; ";
    const int known = int(std::count_if(owner_[g].begin(), owner_[g].end(), [](const Node* n) { return n; }));
    if (known != owned[g]) wrong += "owned: " + std::to_string(owned[g]) + ", known " + std::to_string(known) + "; ";
    if (!keep_nodes_[g] && (droppable[g] != droppable_[g].size() || int(droppable[g]) != evictable_[g]))
      wrong += "droppable pages are not in order of age; ";
  }
  return wrong;
}

}  // namespace freetoken
