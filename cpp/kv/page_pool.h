// PagePool: the pages of one KV group and how many hold each. Not thread-safe (engine thread).
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace freetoken {

class PagePool {
 public:
  explicit PagePool(int pages);

  int total() const { return int(refs_.size()); }
  int available() const { return int(free_.size()); }
  int refs(int32_t page) const { return refs_[page]; }
  // A free page with one reference. There must be one.
  int32_t allocate();
  void ref(int32_t page) { refs_[page]++; }
  // The page is free when nobody holds it; returns what is left. Freed pages are reused last-in first-out: they are
  // warm.
  int unref(int32_t page);

 private:
  std::vector<int32_t> free_;
  std::vector<int32_t> refs_;
};

}  // namespace freetoken
