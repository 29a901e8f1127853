// The KV pages of one group: where bytes lie, and which positions of each page were written in each layer.
//
// Appending at offset o of a page means that all behind it belongs to nobody: it is poisoned. Reading what was not written is
// an error, and so the mistakes of a page table show: pages freed too early, shared pages written, gaps.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "ops/kv_group.h"
#include "ref_ops/device_memory.h"

namespace freetoken::ref {

class KvPages {
 public:
  static Result<KvPages> create(const KvGroup& group, int index, int pages, DeviceMemory& memory);

  const KvGroup& group() const { return group_; }
  int pages() const { return pages_; }
  // `pages`: this device's form of a page table (table()).
  KvHead head(int layer, int head, const int32_t* pages) const;
  // Page ids as the kernels take them: "no page" becomes a page of poison.
  std::vector<int32_t> table(std::span<const int32_t> pages) const;

  // Before the keys and values of one position are written. Returns what is wrong, or nothing.
  std::string prepare_append(int layer, int32_t page, int offset);
  // May positions [begin, end) be read? Returns what is wrong, or nothing.
  std::string check_visible(int layer, std::span<const int32_t> pages, int begin, int end) const;

  std::string check_page(int32_t page) const;
  void copy(int32_t from, int32_t to);
  void read(int32_t page, std::span<uint8_t> out);
  void write(int32_t page, std::span<const uint8_t> bytes);
  // The guard behind a page.
  std::string check_guard(int32_t page) const;

 private:
  static constexpr int kVirgin = -1;  // never touched: its memory is not even poison
  KvPages(const KvGroup& group, int index, int pages) : group_(group), index_(index), pages_(pages) {}
  int& written(int layer, int32_t page) { return written_[size_t(layer) * size_t(pages_ + 1) + size_t(page)]; }
  int written(int layer, int32_t page) const { return written_[size_t(layer) * size_t(pages_ + 1) + size_t(page)]; }
  uint8_t* page_data(int32_t page) const { return block_->data() + page_stride_ * page; }
  int64_t head_bytes(int layer) const;
  void poison_from(int layer, int32_t page, int offset);
  void touch(int32_t page);
  std::string name(int layer, int32_t page) const;

  KvGroup group_;
  int index_, pages_;
  int64_t page_bytes_ = 0, page_stride_ = 0;
  std::vector<int64_t> layer_offset_;
  Block* block_ = nullptr;
  std::vector<int> written_;  // [layer][page]: offsets below hold values
  std::vector<bool> touched_;
};

}  // namespace freetoken::ref
