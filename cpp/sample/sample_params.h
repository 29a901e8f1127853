// The settings that filter and draw, of one request.
#pragma once
#include <cstdint>

namespace freetoken {

// Resolved: the seed is always there.
struct SampleParams {
  float temperature = 1.0f;  // >= 0, finite; 0 = argmax
  int top_k = 0;             // <= 0 = off; more than the vocabulary = off
  float top_p = 1.0f;        // 0..1; 0 = argmax, 1 = off
  float min_p = 0.0f;        // 0..1; 0 = off
  uint64_t seed = 0;

  bool greedy() const { return temperature < 0x1p-126f || top_p <= 0.0f || top_k == 1; }
};

}  // namespace freetoken
