// A block of CUDA threads on one host thread: each is a fiber, and a fiber runs until it must wait for others.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "emulator/types.h"

namespace freetoken::emu {

struct AsyncCopy {
  void* to;
  const void* from;  // null: zeros
  int bytes;
};

struct Thread {
  dim3 index;
  uint32_t linear = 0, lane = 0, warp = 0;
  void* stack_pointer = nullptr;
  char* stack = nullptr;
  bool done = false;
  const char* waits_in = "";
  // cp.async happens at the wait for its group: what is read without one is poison.
  std::vector<std::vector<AsyncCopy>> groups;
  std::vector<AsyncCopy> open_group;
};

// The lanes of one warp that meet in one operation; the last to arrive computes it for all of them.
using Collective = void (*)(uint32_t mask, void** arguments);
struct Rendezvous {
  uint32_t mask = 0, arrived = 0;
  Collective operation = nullptr;
  void* arguments[32];
};

struct Warp {
  uint32_t valid = 0, exited = 0;
  uint16_t epoch = 0;  // counts __syncwarp
  std::vector<Rendezvous> open;
};

struct Kernel;

struct Block {
  dim3 index, size, grid;
  uint32_t threads = 0, live = 0, waiting = 0;
  uint32_t epoch = 1;       // counts __syncthreads
  uint64_t serial = 0;      // unique over all blocks ever run
  uint64_t launch_serial = 0;  // of the first block of this launch
  std::vector<Thread> thread;
  std::vector<Warp> warp;
  std::vector<uint32_t> at_barrier;
  int predicate_count = 0, predicate_result = 0;
  std::vector<uint32_t> queue;  // fibers that can run
  size_t queue_head = 0;
  char* shared = nullptr;  // the dynamic part first, then the static arrays in order of first use
  size_t shared_capacity = 0, shared_dynamic = 0, shared_used = 0, static_bytes = 0;
  std::vector<std::pair<const void*, char*>> shared_static;
  char* stacks = nullptr;
  const Kernel* kernel = nullptr;
  void* scheduler_stack_pointer = nullptr;
  uint64_t random = 0, switches = 0;
  const void* asan_scheduler_stack = nullptr;
  size_t asan_scheduler_stack_bytes = 0;
};

// Set while a kernel runs on this host thread.
extern constinit thread_local Thread* current_thread;
extern constinit thread_local Block* current_block;

// Ends the process with the place in the kernel, if in one: a device has no way to go on either.
[[noreturn, gnu::format(printf, 1, 2)]] void die(const char* format, ...);

void barrier();
int barrier_count(bool predicate);
void collective(uint32_t mask, Collective operation, void* argument, const char* name);
void sync_warp(uint32_t mask);
void* shared_array(const void* tag, size_t bytes, size_t alignment);
char* shared_dynamic(size_t alignment);
bool is_shared(const void* pointer, size_t bytes);
void async_copy(void* to, const void* from, int bytes);
void async_commit();
void async_wait(int groups_left);

// Told to the race detector and the memory statistics; nothing where neither is built in.
#ifdef FT_EMU_RACE
enum class Access : uint8_t { kRead, kWrite, kAtomic };
void note_access(const void* pointer, size_t bytes, Access access, void* pc);
#define FT_EMU_NOTE(pointer, bytes, access) \
  ::freetoken::emu::note_access(pointer, bytes, ::freetoken::emu::Access::access, __builtin_return_address(0))
#else
#define FT_EMU_NOTE(pointer, bytes, access) ((void)0)
#endif

}  // namespace freetoken::emu
