// Sequence: one choice of a request inside the scheduler.
#pragma once
#include <cstdint>
#include <vector>

#include "freetoken/request.h"
#include "kv/kv_cache.h"

namespace freetoken {

struct Sequence {
  RequestId id = 0;
  int choice = 0;
  int priority = 0;              // lower runs earlier
  uint64_t arrival = 0;          // among equals, lower runs earlier; unique
  std::vector<int32_t> tokens;   // prompt, then what was sampled
  int prompt_tokens = 0;
  int max_tokens = 0;            // to sample
  std::vector<int32_t> drafts;   // proposed for the positions after `tokens`; the scheduler may shorten it
  int needed_from = INT32_MAX;   // positions from here on must be computed, cached or not: their logits are wanted
  Sequence* leader = nullptr;    // choice 0 of the same request, while this one waits for its prompt to be computed

  // The scheduler's.
  int computed = 0;              // positions whose keys and values are in the cache
  int slot = -1;                 // sampler slot while running
  int cached_tokens = -1;        // found in the prefix cache when first admitted
  int skipped = 0;               // younger requests that were admitted before this one
  bool opened = false;           // the device knows its sampler state (engine)
  SequenceKv kv;
  KvSnapshot start;              // of its leader's prompt, until admitted
  int slice_tokens = 0;          // > 0: positions [computed, computed + slice_tokens) have passed ...
  int slice_unit = 0;            // ... this many units of the forward pass

  int remaining() const { return int(tokens.size()) - computed; }
  bool decoding() const { return remaining() == 1; }
  int sampled_tokens() const { return int(tokens.size()) - prompt_tokens; }
  bool before(const Sequence& other) const {
    return priority != other.priority ? priority < other.priority : arrival < other.arrival;
  }
};

}  // namespace freetoken
