#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "emulator/block.h"
#include "emulator/launch.h"

namespace freetoken::emu {

void die(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::fputs("emulator: ", stderr);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  if (const Block* b = current_block) {
    std::fprintf(stderr, " [%s, block (%u,%u,%u)", b->kernel->name, b->index.x, b->index.y, b->index.z);
    if (const Thread* t = current_thread)
      std::fprintf(stderr, " thread (%u,%u,%u) warp %u lane %u", t->index.x, t->index.y, t->index.z, t->warp, t->lane);
    std::fputc(']', stderr);
  }
  std::fputc('\n', stderr);
  std::fflush(stderr);
  std::abort();
}

}  // namespace freetoken::emu
