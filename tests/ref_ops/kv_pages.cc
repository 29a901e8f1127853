#include "ref_ops/kv_pages.h"

#include <algorithm>

#include "ref_ops/poison.h"

namespace freetoken::ref {
namespace {

constexpr int64_t kPageGuardBytes = 64;

}  // namespace

Result<KvPages> KvPages::create(const KvGroup& group, int index, int pages, DeviceMemory& memory) {
  KvPages kv(group, index, pages);
  for (const KvLayer& layer : group.layers) {
    kv.layer_offset_.push_back(kv.page_bytes_);
    kv.page_bytes_ += int64_t(layer.kv_heads) * (layer.qk_dim + layer.v_dim) * group.page_tokens * dtype_bytes(group.dtype);
  }
  if (kv.page_bytes_ != group.page_bytes()) return Internal("a page has another size than KvGroup::page_bytes() says");
  kv.page_stride_ = kv.page_bytes_ + kPageGuardBytes;
  const std::string name = "the KV pages of group " + std::to_string(index);
  FT_ASSIGN_OR_RETURN(kv.block_, memory.allocate(name, size_t(kv.page_stride_) * size_t(pages + 1)));
  kv.written_.assign(group.layers.size() * size_t(pages + 1), kVirgin);
  kv.touched_.assign(size_t(pages + 1), false);
  kv.touch(pages);
  return kv;
}

int64_t KvPages::head_bytes(int layer) const {
  const KvLayer& l = group_.layers[size_t(layer)];
  return int64_t(l.qk_dim + l.v_dim) * group_.page_tokens * dtype_bytes(group_.dtype);
}

KvHead KvPages::head(int layer, int head, const int32_t* pages) const {
  const KvLayer& l = group_.layers[size_t(layer)];
  const uint8_t* keys = block_->data() + layer_offset_[size_t(layer)] + head * head_bytes(layer);
  return {keys, keys + int64_t(l.qk_dim) * group_.page_tokens * dtype_bytes(group_.dtype), page_stride_, pages,
          group_.page_tokens, group_.dtype, l.qk_dim, l.v_dim};
}

std::vector<int32_t> KvPages::table(std::span<const int32_t> pages) const {
  std::vector<int32_t> out(pages.begin(), pages.end());
  for (int32_t& page : out)
    if (page < 0 || page >= pages_) page = pages_;
  return out;
}

std::string KvPages::name(int layer, int32_t page) const {
  return "page " + std::to_string(page) + " of KV group " + std::to_string(index_) + ", layer " + std::to_string(layer);
}

std::string KvPages::check_page(int32_t page) const {
  if (page >= 0 && page < pages_) return {};
  return "page " + std::to_string(page) + " of KV group " + std::to_string(index_) + " is none of its " +
         std::to_string(pages_) + " pages";
}

void KvPages::touch(int32_t page) {
  if (touched_[size_t(page)]) return;
  touched_[size_t(page)] = true;
  fill_poison(page_data(page), size_t(page_stride_));
  for (int layer = 0; layer < int(group_.layers.size()); layer++) written(layer, page) = 0;
}

// Keys lie [block of 32 positions][dimension][32 positions], values [position][dimension], per head (kernels/attention.h).
void KvPages::poison_from(int layer, int32_t page, int offset) {
  const KvLayer& l = group_.layers[size_t(layer)];
  const int value = dtype_bytes(group_.dtype), tokens = group_.page_tokens;
  for (int h = 0; h < l.kv_heads; h++) {
    uint8_t* keys = page_data(page) + layer_offset_[size_t(layer)] + h * head_bytes(layer);
    for (int first = 0; first < tokens; first += kKeyBlock) {
      const int from = std::clamp(offset - first, 0, kKeyBlock);
      for (int d = 0; from < kKeyBlock && d < l.qk_dim; d++)
        fill_poison(keys + ((int64_t(first) * l.qk_dim) + int64_t(d) * kKeyBlock + from) * value, size_t(kKeyBlock - from) * size_t(value));
    }
    uint8_t* values = keys + int64_t(l.qk_dim) * tokens * value;
    fill_poison(values + int64_t(offset) * l.v_dim * value, size_t(tokens - offset) * size_t(l.v_dim) * size_t(value));
  }
}

std::string KvPages::prepare_append(int layer, int32_t page, int offset) {
  if (std::string wrong = check_page(page); !wrong.empty()) return "append to " + wrong;
  touch(page);
  int& known = written(layer, page);
  if (offset > known)
    return "append at offset " + std::to_string(offset) + " of " + name(layer, page) + ", but only " + std::to_string(known) +
           " positions of it were written";
  if (known > offset + 1) poison_from(layer, page, offset + 1);
  known = offset + 1;
  return {};
}

std::string KvPages::check_visible(int layer, std::span<const int32_t> pages, int begin, int end) const {
  const int tokens = group_.page_tokens;
  for (int i = begin / tokens; i * tokens < end; i++) {
    const int needed = std::min(tokens, end - i * tokens);
    const std::string what = "attention over positions " + std::to_string(begin) + ".." + std::to_string(end - 1) + " reads ";
    if (i >= int(pages.size())) return what + "past its list of " + std::to_string(pages.size()) + " pages";
    if (std::string wrong = check_page(pages[size_t(i)]); !wrong.empty()) return what + wrong;
    const int known = written(layer, pages[size_t(i)]);
    if (known < needed)
      return what + std::to_string(needed) + " positions of " + name(layer, pages[size_t(i)]) + ", of which " +
             std::to_string(std::max(known, 0)) + " were written";
  }
  return {};
}

void KvPages::copy(int32_t from, int32_t to) {
  touch(from);
  touch(to);
  std::memcpy(page_data(to), page_data(from), size_t(page_bytes_));
  for (int layer = 0; layer < int(group_.layers.size()); layer++) written(layer, to) = written(layer, from);
}

void KvPages::read(int32_t page, std::span<uint8_t> out) {
  touch(page);
  std::memcpy(out.data(), page_data(page), size_t(page_bytes_));
}

// What of the bytes is poison is not known here: all of them count as written.
void KvPages::write(int32_t page, std::span<const uint8_t> bytes) {
  touch(page);
  std::memcpy(page_data(page), bytes.data(), size_t(page_bytes_));
  for (int layer = 0; layer < int(group_.layers.size()); layer++) written(layer, page) = group_.page_tokens;
}

std::string KvPages::check_guard(int32_t page) const {
  const size_t words = kPageGuardBytes / 4;
  if (find_poison(page_data(page) + page_bytes_, words, false) == words) return {};
  fill_poison(page_data(page) + page_bytes_, kPageGuardBytes);
  return "the bytes behind page " + std::to_string(page) + " of KV group " + std::to_string(index_) + " were written";
}

}  // namespace freetoken::ref
