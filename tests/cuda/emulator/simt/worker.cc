#include "simt/worker.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "emulator/launch.h"
#include "emulator/options.h"
#include "simt/fiber.h"
#include "simt/shared_memory.h"
#ifdef FT_EMU_RACE
#include "race/memory_stats.h"
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace freetoken::emu {

constinit thread_local Thread* current_thread = nullptr;
constinit thread_local Block* current_block = nullptr;

namespace {

std::atomic<uint64_t> block_serial{1};

// A thread leaves the kernel: copies under way are completed, as the hardware does, and a barrier that waits only for
// threads that still run may now be full.
void finish_thread() {
  Thread& me = *current_thread;
  Block& block = *current_block;
  Warp& warp = block.warp[me.warp];
  async_commit();
  async_wait(0);
  me.done = true;
  block.live--;
  warp.exited |= 1u << me.lane;
  for (const Rendezvous& open : warp.open)
    if (open.mask >> me.lane & 1) die("the lane exits while lanes of mask %08x wait for it", open.mask);
  if (block.live && block.waiting == block.live) release_barrier();
}

void fiber_main() {
  fiber_entered();
  const Kernel& kernel = *current_block->kernel;
  kernel.call(kernel.arguments.get());
  finish_thread();
  run_next(&current_thread->stack_pointer);
  std::abort();
}

}  // namespace

uint64_t next_block_serial() { return block_serial++; }

Worker::~Worker() {
  unmap_stacks(block_.stacks, stack_threads_);
  if (block_.shared) munmap(block_.shared, block_.shared_capacity);
}

void Worker::prepare(const Kernel& kernel, uint64_t launch_serial, uint64_t seed) {
  const dim3 size = kernel.block;
  const uint32_t threads = size.x * size.y * size.z;
  if (threads > stack_threads_) {
    unmap_stacks(block_.stacks, stack_threads_);
    block_.stacks = map_stacks(threads);
    stack_threads_ = threads;
  }
  if (!block_.shared) {
    block_.shared_capacity = 512 * 1024;
    void* map = mmap(nullptr, block_.shared_capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) die("no memory for shared memory");
    block_.shared = static_cast<char*>(map);
  }
  block_.grid = kernel.grid;
  block_.size = size;
  block_.threads = threads;
  block_.shared_dynamic = kernel.dynamic_shared_bytes;
  block_.kernel = &kernel;
  block_.launch_serial = launch_serial;
  block_.thread.resize(threads);
  block_.warp.resize((threads + 31) / 32);
  for (uint32_t i = 0; i < threads; i++) {
    Thread& t = block_.thread[i];
    t.linear = i, t.lane = i % 32, t.warp = i / 32;
    t.index = dim3(i % size.x, i / size.x % size.y, i / (size.x * size.y));
    t.stack = block_.stacks + i * kStackBytes;
  }
}

void Worker::reset_shared() {
  block_.shared_static.clear();
  block_.shared_used = block_.shared_dynamic;
  block_.static_bytes = 0;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(block_.shared, block_.shared_capacity);
#endif
  std::memset(block_.shared, 0xff, block_.shared_dynamic + kStaticSharedBytes);
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(block_.shared + block_.shared_dynamic, block_.shared_capacity - block_.shared_dynamic);
  __asan_unpoison_memory_region(block_.stacks, block_.threads * kStackBytes);  // the last block's frames never returned
#endif
}

void Worker::reset_threads(uint64_t seed) {
  block_.random = (seed + 1) * 0x9e3779b97f4a7c15u | 1;
  block_.live = block_.threads;
  block_.waiting = block_.predicate_count = 0;
  block_.epoch = 1;
  block_.queue.clear();
  block_.queue_head = 0;
  block_.at_barrier.clear();
  for (Thread& t : block_.thread) {
    t.done = false;
    t.groups.clear();
    t.open_group.clear();
    prepare_fiber(t, fiber_main);
    make_ready(t.linear);
  }
  for (size_t w = 0; w < block_.warp.size(); w++) {
    Warp& warp = block_.warp[w];
    const uint32_t left = block_.threads - uint32_t(w) * 32;
    warp.valid = left >= 32 ? ~0u : (1u << left) - 1;
    warp.exited = warp.epoch = 0;
    warp.open.clear();
  }
}

void Worker::run_block(uint64_t index, uint64_t seed) {
  const dim3 grid = block_.grid;
  block_.index =
      dim3(unsigned(index % grid.x), unsigned(index / grid.x % grid.y), unsigned(index / (uint64_t(grid.x) * grid.y)));
  block_.serial = next_block_serial();
  current_block = &block_;
  current_thread = nullptr;
  reset_shared();
  reset_threads(seed + index * 7919);
  while (block_.live) {
    if (block_.queue_head == block_.queue.size()) deadlock();
    run_next(&block_.scheduler_stack_pointer);
  }
#ifdef FT_EMU_RACE
  close_block_stats();
#endif
  count_switches(block_.switches);
  block_.switches = 0;
  current_block = nullptr;
  current_thread = nullptr;
}

void Worker::deadlock() const {
  std::fprintf(stderr, "emulator: %s, block (%u,%u,%u): no thread can go on; %u of %u are left\n", block_.kernel->name,
               block_.index.x, block_.index.y, block_.index.z, block_.live, block_.threads);
  int told = 0;
  for (const Thread& t : block_.thread)
    if (!t.done && told++ < 8) std::fprintf(stderr, "  thread %u waits in %s\n", t.linear, t.waits_in);
  die("deadlock in a kernel");
}

}  // namespace freetoken::emu
