#include "cuda/runtime/graph_cache.h"

namespace freetoken::cuda {

uint64_t GraphCache::hash(const ShapeKey& key) {
  uint64_t sum = 0xcbf29ce484222325u;
  for (const uint64_t word : key) sum = (sum ^ word) * 0x100000001b3u + (sum >> 31);
  return sum;
}

GraphEntry& GraphCache::find(const ShapeKey& key) {
  const uint64_t h = hash(key);
  const auto [begin, end] = by_hash_.equal_range(h);
  for (auto at = begin; at != end; ++at)
    if (at->second->key == key) {
      entries_.splice(entries_.begin(), entries_, at->second);
      return entries_.front();
    }
  if (entries_.size() >= most_) {
    const auto oldest = std::prev(entries_.end());
    const auto [first, last] = by_hash_.equal_range(hash(oldest->key));
    for (auto at = first; at != last; ++at)
      if (at->second == oldest) {
        by_hash_.erase(at);
        break;
      }
    destroy(*oldest);
    entries_.pop_back();
  }
  entries_.push_front({key});
  by_hash_.emplace(h, entries_.begin());
  return entries_.front();
}

void GraphCache::clear() {
  for (GraphEntry& entry : entries_) destroy(entry);
  entries_.clear();
  by_hash_.clear();
}

void GraphCache::destroy(GraphEntry& entry) {
  if (!entry.graph) return;
  cudaStreamSynchronize(stream_);  // an error here is one of earlier work, which wait() tells of
  cudaGraphExecDestroy(entry.graph);
  entry.graph = nullptr;
}

}  // namespace freetoken::cuda
