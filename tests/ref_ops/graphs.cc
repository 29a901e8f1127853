#include "ref_ops/graphs.h"

namespace freetoken::ref {

uint64_t GraphCache::hash(const std::vector<uint64_t>& words) {
  uint64_t sum = 0xcbf29ce484222325u;
  for (const uint64_t word : words) sum = (sum ^ word) * 0x100000001b3u + (sum >> 31);
  return sum;
}

std::shared_ptr<const Graph> GraphCache::find_or_capture(Shape shape, std::vector<Call> calls, bool* replay) {
  const uint64_t key = hash(shape.numbers);
  for (const auto& graph : graphs_[key])
    if (graph->shape == shape) {
      *replay = true;
      return graph;
    }
  *replay = false;
  auto graph = std::make_shared<const Graph>(Graph{std::move(shape), std::move(calls)});
  graphs_[key].push_back(graph);
  order_.push_back(key);
  if (order_.size() > kMost) {
    auto oldest = graphs_.find(order_.front());
    order_.pop_front();
    oldest->second.erase(oldest->second.begin());
    if (oldest->second.empty()) graphs_.erase(oldest);
  }
  return graph;
}

int GraphCache::variants(const Shape& shape) const {
  const auto it = graphs_.find(hash(shape.numbers));
  int count = 0;
  if (it != graphs_.end())
    for (const auto& graph : it->second) count += graph->shape.numbers == shape.numbers;
  return count;
}

}  // namespace freetoken::ref
