// Runs the blocks of one launch to completion, on the calling thread or on several.
#pragma once
#include <cstdint>

#include "emulator/launch.h"

namespace freetoken::emu {

// `order` varies the order of blocks and threads from launch to launch; it counts only with a seed.
void run_blocks(const Kernel& kernel, uint64_t order);

}  // namespace freetoken::emu
