// Philox4x32-10: the counter-based generator behind every draw (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011). No state: a draw depends on its seed and place alone, so batches and drafts cannot change it.
#pragma once
#include <array>
#include <cstdint>

namespace freetoken {

using PhiloxBlock = std::array<uint32_t, 4>;

constexpr PhiloxBlock philox4x32(PhiloxBlock counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; round++) {
    const uint64_t a = uint64_t(0xD2511F53u) * counter[0], b = uint64_t(0xCD9E8D57u) * counter[2];
    counter = {uint32_t(b >> 32) ^ counter[1] ^ key[0], uint32_t(b), uint32_t(a >> 32) ^ counter[3] ^ key[1], uint32_t(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// The uniform number in (0, 1) that draws the token at `position` of the sequence: 23 bits, never 0 or 1, exact in fp32.
constexpr float draw_uniform(uint64_t seed, uint32_t position, uint32_t sample_index) {
  const PhiloxBlock x = philox4x32({position, sample_index, 0, 0}, {uint32_t(seed), uint32_t(seed >> 32)});
  return (float(x[0] >> 9) + 0.5f) * 0x1p-23f;
}

}  // namespace freetoken
