// Sequence: a request inside the scheduler.
#pragma once
#include <cstdint>
#include <vector>

#include "freetoken/request.h"

namespace freetoken {

struct Sequence {
  RequestId id = 0;
  std::vector<int32_t> tokens;  // prompt, then what was sampled
  int prompt_tokens = 0;
  int max_tokens = 0;           // to sample
  int computed = 0;             // positions whose keys and values are in the cache
  std::vector<std::vector<int32_t>> pages;  // per KV group, covering prompt + max_tokens while running

  bool prefilling() const { return computed < prompt_tokens; }
  int sampled_tokens() const { return int(tokens.size()) - prompt_tokens; }
};

}  // namespace freetoken
