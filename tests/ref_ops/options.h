// How RefOps behaves; and what it counted.
#pragma once
#include <cstdint>
#include <vector>

#include "platform/cpu_features.h"

namespace freetoken::ref {

struct RefOptions {
  bool float32_activations = false;
  std::vector<uint8_t> usable_tokens;  // per id of the output matrix: may it be sampled
  uint64_t seed = 1;                   // of delays and of the order of the mailbox's answers
  int max_delay_us = 200;              // now and then the device or an answer is late by up to this; 0 = never
  bool fixed_addresses = true;         // a step whose calls equal an earlier one's but for buffers is a violation
  IsaLevel isa = IsaLevel::kScalar;    // of the kernels; all levels give the same bits
};

// Seed, delay and level from FREETOKEN_REF_SEED, FREETOKEN_REF_DELAY_US and FREETOKEN_REF_ISA, where set. Throws
// std::invalid_argument. The scalar level is the definition, the best one is about ten times as fast.
RefOptions options_from_environment(IsaLevel isa_otherwise);

struct RefStats {
  int64_t steps = 0;
  int64_t captures = 0, replays = 0;  // steps of a new shape; steps that ran the captured calls of an earlier one
  int64_t posted_experts = 0, answered_experts = 0;
};

}  // namespace freetoken::ref
