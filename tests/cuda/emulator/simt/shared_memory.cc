#include "simt/shared_memory.h"

#include <cstring>

#include "emulator/block.h"
#include "emulator/launch.h"
#include "emulator/options.h"
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace freetoken::emu {

void* shared_array(const void* tag, size_t bytes, size_t alignment) {
  Block& block = *current_block;
  for (const auto& [known, place] : block.shared_static)
    if (known == tag) return place;
  size_t at = (block.shared_used + alignment - 1) / alignment * alignment;
#if defined(__SANITIZE_ADDRESS__)
  at = (at + 127) / 128 * 128 + 128;  // a zone between two arrays that no access may touch
#endif
  block.static_bytes += bytes;
  if (block.static_bytes > kStaticSharedBytes)
    die("%s: %zu bytes of static shared memory, the limit is %zu", block.kernel->name, block.static_bytes,
        kStaticSharedBytes);
  if (block.static_bytes + block.shared_dynamic > options().shared_bytes)
    die("%s: %zu bytes of shared memory, the device has %zu a block", block.kernel->name,
        block.static_bytes + block.shared_dynamic, options().shared_bytes);
  block.shared_used = at + bytes;
  char* place = block.shared + at;
  block.shared_static.emplace_back(tag, place);
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(place, bytes);
  std::memset(place, 0xff, bytes);
#endif
  return place;
}

char* shared_dynamic(size_t alignment) {
  Block& block = *current_block;
  static_cast<void>(alignment);  // the block's memory begins at a page
  if (block.shared_dynamic == 0) die("%s: uses dynamic shared memory, launched with none", block.kernel->name);
  return block.shared;
}

bool is_shared(const void* pointer, size_t bytes) {
  const Block* block = current_block;
  const char* p = static_cast<const char*>(pointer);
  return block && p >= block->shared && p + bytes <= block->shared + block->shared_used;
}

void async_copy(void* to, const void* from, int bytes) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % 16)
    die("cp.async: an address is not 16-byte aligned");
  if (!is_shared(to, 16)) die("cp.async: the destination is not in shared memory");
  FT_EMU_NOTE(to, 16, kWrite);
  if (from) FT_EMU_NOTE(from, 16, kRead);
  std::memset(to, 0xff, size_t(bytes));
  current_thread->open_group.push_back({to, from, bytes});
}

void async_commit() {
  Thread& me = *current_thread;
  me.groups.push_back(std::move(me.open_group));
  me.open_group.clear();
}

void async_wait(int groups_left) {
  Thread& me = *current_thread;
  const size_t due = me.groups.size() > size_t(groups_left) ? me.groups.size() - size_t(groups_left) : 0;
  for (size_t i = 0; i < due; i++)
    for (const AsyncCopy& copy : me.groups[i]) {
      FT_EMU_NOTE(copy.to, 16, kWrite);
      if (copy.from)
        std::memcpy(copy.to, copy.from, size_t(copy.bytes));
      else
        std::memset(copy.to, 0, size_t(copy.bytes));
    }
  me.groups.erase(me.groups.begin(), me.groups.begin() + ptrdiff_t(due));
}

}  // namespace freetoken::emu
