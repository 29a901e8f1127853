// PrefixTree: pages of finished and running sequences by the tokens they hold.
//
// A node is one page: its tokens (a whole page, or fewer in a leaf) and the page of every group. Children are ordered
// by their tokens, so the child that shares most with a given text is a neighbour of the place where that text would
// stand: thousands of children with a long common start cost a logarithm. The tree holds one reference to each of its
// pages; a page nobody else holds (one reference) can be evicted. Whoever holds a page of a full group also holds those
// of all nodes above it, so what can be evicted is always a whole subtree, and leaves go first, the least recently used
// one of all. Pages of window groups can be dropped from any node; the node stays for the other groups and as a way to
// its children.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kv/page_pool.h"

namespace freetoken {

class PrefixTree {
 public:
  struct Node;
  struct TokenLess {
    using is_transparent = void;
    bool operator()(std::span<const int32_t> a, std::span<const int32_t> b) const {
      return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
    }
  };
  struct Node {
    Node* parent = nullptr;
    std::vector<int32_t> tokens;
    std::vector<int32_t> pages;   // per group; kNoPage where there is none
    uint64_t tick = 0;            // last use: when it was put here, or when the last who held a page of it let go
    std::map<std::span<const int32_t>, std::unique_ptr<Node>, TokenLess> children;  // keys point into the children
  };
  struct Match {
    std::vector<Node*> nodes;     // whole pages
    Node* partial = nullptr;      // the node of which the first partial_tokens match
    int partial_tokens = 0;
  };

  // keep_nodes[g]: group g keeps everything, so its pages decide about nodes; else it is a window group.
  PrefixTree(std::vector<PagePool>& pools, std::vector<uint8_t> keep_nodes, int page_tokens);
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // The longest common prefix with tokens[0, limit), whatever pages are there.
  Match find(std::span<const int32_t> tokens, int limit) const;
  // The child of `parent` (null: the root) that has exactly these tokens, or null.
  Node* child(Node* parent, std::span<const int32_t> tokens) const;

  // Puts a page's worth of tokens (a whole page, or the rest in the end) under `parent` (null: the root). Pages are
  // those of a sequence: where the tree has the same node already, they are replaced by the tree's and given back.
  // Returns the node; null when a node that holds more of the same makes a partial one superfluous.
  Node* insert(Node* parent, std::span<const int32_t> tokens, std::span<int32_t> pages);
  // The node that holds the page, or null.
  Node* owner(int group, int32_t page) const { return owner_[group][page]; }

  // References to pages that may be the tree's go through here, so that it knows what can be evicted.
  void ref(int group, int32_t page);
  void unref(int group, int32_t page);

  // Pages of the group that nobody but the tree holds.
  int evictable(int group) const { return evictable_[group]; }
  // Frees one page of the group. There must be an evictable one.
  void evict(int group);
  void clear();

  int64_t evicted_pages() const { return evicted_pages_; }
  std::string check() const;

 private:
  using ByAge = std::set<std::pair<uint64_t, Node*>>;

  bool sole(int group, int32_t page) const;
  bool removable(const Node& node) const;
  void forget(Node& node);            // takes it out of the orders of age
  void remember(Node& node);
  void drop_page(Node& node, int group);
  void remove(Node* leaf);
  void remove_if_empty(Node* node);
  void remove_prefixes(Node& parent, std::span<const int32_t> tokens);
  template <class F>
  void each_node(const Node& node, const F& visit) const;

  std::vector<PagePool>& pools_;
  std::vector<uint8_t> keep_nodes_;
  int page_tokens_;
  Node root_;
  std::vector<std::vector<Node*>> owner_;  // [group][page]
  std::vector<int> evictable_;
  ByAge leaves_;                           // that can be removed with all their pages
  std::vector<ByAge> droppable_;           // [window group]: nodes whose page of the group nobody else holds
  uint64_t tick_ = 0;
  int64_t evicted_pages_ = 0;
};

}  // namespace freetoken
