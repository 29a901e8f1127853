// One host thread that runs blocks.
#pragma once
#include "emulator/block.h"

namespace freetoken::emu {

class Worker {
 public:
  Worker() = default;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();

  // Before the blocks of a launch.
  void prepare(const Kernel& kernel, uint64_t launch_serial, uint64_t seed);
  void run_block(uint64_t index, uint64_t seed);

 private:
  void reset_shared();
  void reset_threads(uint64_t seed);
  [[noreturn]] void deadlock() const;

  Block block_;
  uint32_t stack_threads_ = 0;
};

// The next serial number of a block, over all workers.
uint64_t next_block_serial();

// Fibers of the running block.
void make_ready(uint32_t thread);
void run_next(void** save);
void wait_in(const char* what);
void release_barrier();

}  // namespace freetoken::emu
