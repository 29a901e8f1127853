#include "ref_ops/check.h"

namespace freetoken::ref {
namespace {

std::string shape_of(int rows, int cols) {
  std::string text = "[";
  text += std::to_string(rows) + ", " + std::to_string(cols);
  return text += ']';
}

}  // namespace

void RefOps::Check::tensor(const char* name, const Tensor& t, int rows, int cols) {
  that(t.valid(), [&] { return std::string(name) + " is not valid"; });
  that(t.dtype == DType::kF32, [&] { return std::string(name) + " is not fp32"; });
  that(t.rows >= 0 && t.cols > 0 && (rows < 0 || t.rows == rows) && (cols < 0 || t.cols == cols),
       [&] { return std::string(name) + " is " + shape_of(t.rows, t.cols) + ", not " + shape_of(rows, cols); });
  if (!ok_) return;
  const Block* block = ops_.memory_.find(t.address, 0);
  that(block && block->row_bytes > 0 && t.row_bytes == block->row_bytes && int64_t(t.cols) * 4 <= t.row_bytes &&
           (t.address - block->address()) % uint64_t(block->row_bytes) == 0 &&
           (t.address - block->address()) / uint64_t(block->row_bytes) + uint64_t(t.rows) <= uint64_t(block->rows),
       [&] {
         return std::string(name) + " " + shape_of(t.rows, t.cols) + " with rows of " + std::to_string(t.row_bytes) +
                " bytes at " + ops_.memory_.describe(t.address) + " is not inside one buffer";
       });
}

void RefOps::Check::optional_vector(const char* name, const Tensor& t, int cols) {
  if (!t.valid()) return;
  that(t.dtype == DType::kF32 && t.rows == 1 && t.cols == cols && ops_.memory_.find(t.address, size_t(cols) * 4),
       [&] { return std::string(name) + " is " + shape_of(t.rows, t.cols) + ", not " + shape_of(1, cols) + " of this device"; });
}

void RefOps::Check::weight(const char* name, const Weight& w, int n, int k) {
  const auto it = ops_.weights_at_.find(w.address);
  that(it != ops_.weights_at_.end() && it->second.format == w.format && it->second.n == w.n && it->second.k == w.k,
       [&] { return std::string(name) + " is no weight of this device"; });
  that((n < 0 || w.n == n) && (k < 0 || w.k == k),
       [&] { return std::string(name) + " is " + shape_of(w.n, w.k) + ", not " + shape_of(n, k); });
}

void RefOps::Check::apart(const Tensor& x, const Tensor& out) {
  const uint64_t x_end = x.address + uint64_t(x.rows) * uint64_t(x.row_bytes);
  const uint64_t out_end = out.address + uint64_t(out.rows) * uint64_t(out.row_bytes);
  that(x_end <= out.address || out_end <= x.address, [] { return "an output lies on an input"; });
}

void RefOps::Check::step_rows(const RefQueue& queue, int rows) {
  that(rows == int(queue.data.rows.size()), [&] {
    return std::to_string(rows) + " rows, but the step has " + std::to_string(queue.data.rows.size());
  });
}

void RefOps::Check::slot(int slot) {
  that(slot >= 0 && slot < ops_.limits_.sampler_slots, [&] {
    return "slot " + std::to_string(slot) + ", but reserve() said " + std::to_string(ops_.limits_.sampler_slots);
  });
}

void RefOps::Check::page(int group, int32_t page, size_t bytes) {
  const std::vector<KvPages>& kv = ops_.executor_.kv();
  that(group >= 0 && group < int(kv.size()), [&] { return "KV group " + std::to_string(group) + " does not exist"; });
  if (!ok_) return;
  const KvPages& pages = kv[size_t(group)];
  that(pages.check_page(page).empty(), [&] { return pages.check_page(page); });
  that(bytes == 0 || int64_t(bytes) == pages.group().page_bytes(), [&] {
    return std::to_string(bytes) + " bytes for a page of " + std::to_string(pages.group().page_bytes());
  });
}

}  // namespace freetoken::ref
