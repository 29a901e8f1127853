// What the kernels' accesses would cost on a device: 32-byte sectors of global memory and bank wavefronts of shared memory,
// for each instruction, against the fewest that its bytes need. Counted in race builds (ft_add_cuda_emulated ... RACE).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace freetoken::emu {

struct AccessStats {
  std::string kernel;
  void* pc = nullptr;
  unsigned bytes = 0;  // of a lane
  bool shared = false, write = false;
  uint64_t requests = 0;      // of a warp
  uint64_t transactions = 0;  // sectors, or wavefronts
  uint64_t ideal = 0;
  double worst = 0.0;  // the largest transactions / ideal of one request: n is an n-way bank conflict
};

// Starts and ends the counting; what was counted, of all launches in between that have run.
void begin_memory_stats();
std::vector<AccessStats> end_memory_stats();

// Over those whose kernel's name contains `kernel`.
double worst_bank_conflict(const std::vector<AccessStats>& stats, const std::string& kernel);
// Of the bytes read from global memory: how many came with 16-byte loads that touched no sector needlessly.
double wide_coalesced_share(const std::vector<AccessStats>& stats, const std::string& kernel);

// Races found since the last call; only where options().report_races lets the process go on.
uint64_t take_races();

}  // namespace freetoken::emu
