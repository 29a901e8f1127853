#include "kv/page_pool.h"

namespace freetoken {

PagePool::PagePool(int pages) : refs_(size_t(pages), 0) {
  free_.reserve(size_t(pages));
  for (int p = pages - 1; p >= 0; p--) free_.push_back(p);
}

int32_t PagePool::allocate() {
  const int32_t page = free_.back();
  free_.pop_back();
  refs_[page] = 1;
  return page;
}

int PagePool::unref(int32_t page) {
  if (--refs_[page] == 0) free_.push_back(page);
  return refs_[page];
}

}  // namespace freetoken
