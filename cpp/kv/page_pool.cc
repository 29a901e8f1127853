#include "kv/page_pool.h"

namespace freetoken {

PagePool::PagePool(int pages) : total_(pages) {
  free_.reserve(pages);
  for (int p = pages - 1; p >= 0; p--) free_.push_back(p);
}

bool PagePool::allocate(int count, std::vector<int32_t>* pages) {
  if (count > available()) return false;
  pages->insert(pages->end(), free_.rbegin(), free_.rbegin() + count);
  free_.resize(free_.size() - count);
  return true;
}

void PagePool::release(std::vector<int32_t>* pages) {
  free_.insert(free_.end(), pages->rbegin(), pages->rend());
  pages->clear();
}

}  // namespace freetoken
