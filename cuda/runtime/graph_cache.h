// GraphCache: captured steps by shape. The second step of a shape is captured, later ones are replayed: a shape that comes
// once is not worth a graph.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

#include "core/status.h"

namespace freetoken::cuda {

using ShapeKey = std::vector<uint64_t>;

struct GraphEntry {
  ShapeKey key;
  cudaGraphExec_t graph = nullptr;  // null until captured
  int uses = 0;
};

class GraphCache {
 public:
  // `stream`: where graphs run; nothing of it is in flight when one is destroyed.
  explicit GraphCache(cudaStream_t stream, size_t most = 64) : stream_(stream), most_(most) {}
  ~GraphCache() { clear(); }
  GraphCache(const GraphCache&) = delete;

  // The entry of this shape, made where there is none; the least recently used one goes. Valid until the next call.
  GraphEntry& find(const ShapeKey& key);
  // Addresses that captured steps use have changed.
  void clear();
  size_t size() const { return entries_.size(); }

 private:
  static uint64_t hash(const ShapeKey& key);
  void destroy(GraphEntry& entry);
  cudaStream_t stream_;
  size_t most_;
  std::list<GraphEntry> entries_;  // the most recently used one first
  std::unordered_multimap<uint64_t, std::list<GraphEntry>::iterator> by_hash_;
};

}  // namespace freetoken::cuda
