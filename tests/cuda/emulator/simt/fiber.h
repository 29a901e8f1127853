// Switching between the fibers of a block.
#pragma once
#include "emulator/block.h"

namespace freetoken::emu {

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = 256 * 1024;
#else
constexpr size_t kStackBytes = 128 * 1024;
#endif

// Saves the running context in *save and goes on with `to`, or with the block's scheduler where that is null.
void switch_to(void** save, Thread* to);
// Prepares a thread to begin at `entry` when it is switched to.
void prepare_fiber(Thread& thread, void (*entry)());
// The first thing a fiber does.
void fiber_entered();
// Maps / unmaps stacks for `threads`, with a page between them that faults.
char* map_stacks(uint32_t threads);
void unmap_stacks(char* stacks, uint32_t threads);

}  // namespace freetoken::emu
