#pragma once
#include "emulator/block.h"
#include "emulator/memory_stats.h"

namespace freetoken::emu {

void count_access(const void* pointer, size_t bytes, bool write, bool shared, void* pc);
void close_block_stats();  // requests that not all lanes of a warp took part in

}  // namespace freetoken::emu
