// PagePool: which pages of one KV group are free. A page belongs to exactly one sequence. Not thread-safe (engine thread).
#pragma once
#include <cstdint>
#include <vector>

namespace freetoken {

class PagePool {
 public:
  explicit PagePool(int pages);

  int total() const { return total_; }
  int available() const { return int(free_.size()); }
  // Appends `count` page ids to *pages and returns true, or changes nothing and returns false.
  bool allocate(int count, std::vector<int32_t>* pages);
  // Gives the pages back and clears the list. Freed pages are reused last-in first-out: they are warm in cache.
  void release(std::vector<int32_t>* pages);

 private:
  int total_;
  std::vector<int32_t> free_;
};

}  // namespace freetoken
