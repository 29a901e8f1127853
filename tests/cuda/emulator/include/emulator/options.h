// Settings, counters and the test API of the emulator.
#pragma once
#include <cstddef>
#include <cstdint>

namespace freetoken::emu {

struct Options {
  uint64_t seed = 0;                         // FREETOKEN_EMU_SEED: of the order of streams; above 0 also of blocks and threads
  int workers = 1;                           // FREETOKEN_EMU_WORKERS: host threads that run the blocks of a launch
  int devices = 1;                           // FREETOKEN_EMU_DEVICES
  size_t memory_bytes = size_t(4) << 30;     // FREETOKEN_EMU_MEMORY_MB: of each device
  size_t shared_bytes = 99 * 1024;           // FREETOKEN_EMU_SHARED_KB: most a block may have, 99 on sm_86, 89, 120
  bool stream_memory_operations = true;      // FREETOKEN_EMU_MEMORY_OPS: 0 hides cuStreamWaitValue32 and its like
  int stuck_ms = 30000;                      // FREETOKEN_EMU_STUCK_MS: a host that waits longer for a device that only waits dies
  bool report_races = false;                 // FREETOKEN_EMU_RACES=report: print them and go on, instead of ending the process
};

// Read from the environment at first use; tests may change it while no device works.
Options& options();
// Begins another order of streams, blocks and threads.
void reseed(uint64_t seed);
// Threads of CUDA that were switched between, since the start.
uint64_t switches();
void count_switches(uint64_t n);

}  // namespace freetoken::emu
