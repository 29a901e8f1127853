// Captured steps. A step whose shape was seen before runs the calls that were captured then, with its own data, as a replayed
// graph does; the handles it was given do not matter any more.
#pragma once
#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "ref_ops/calls.h"

namespace freetoken::ref {

struct Graph {
  Shape shape;
  std::vector<Call> calls;
};

class GraphCache {
 public:
  // The captured step of this shape, or this one, captured now. *replay says which.
  std::shared_ptr<const Graph> find_or_capture(Shape shape, std::vector<Call> calls, bool* replay);
  // In how many variants of buffers steps with these numbers were captured.
  int variants(const Shape& shape) const;

 private:
  static constexpr size_t kMost = 256;
  static uint64_t hash(const std::vector<uint64_t>& words);
  std::unordered_map<uint64_t, std::vector<std::shared_ptr<const Graph>>> graphs_;  // by the hash of the numbers
  std::list<uint64_t> order_;  // of capture; the oldest are forgotten
};

}  // namespace freetoken::ref
