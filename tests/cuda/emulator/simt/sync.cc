// What threads of a block wait in: barriers and operations of a warp.
#include <utility>

#include "emulator/options.h"
#include "simt/fiber.h"
#include "simt/worker.h"

namespace freetoken::emu {
namespace {

uint64_t random_number(Block& block) {
  uint64_t& x = block.random;
  x ^= x << 13, x ^= x >> 7, x ^= x << 17;
  return x;
}

}  // namespace

void make_ready(uint32_t thread) {
  Block& block = *current_block;
  block.queue.push_back(thread);
  if (options().seed == 0) return;
  const size_t waiting = block.queue.size() - block.queue_head;
  std::swap(block.queue.back(), block.queue[block.queue_head + random_number(block) % waiting]);
}

void run_next(void** save) {
  Block& block = *current_block;
  if (block.queue_head == block.queue.size()) {
    block.queue.clear();
    block.queue_head = 0;
    switch_to(save, nullptr);
    return;
  }
  Thread* next = &block.thread[block.queue[block.queue_head++]];
  if (block.queue_head > 4096) {
    block.queue.erase(block.queue.begin(), block.queue.begin() + ptrdiff_t(block.queue_head));
    block.queue_head = 0;
  }
  if (next != current_thread) switch_to(save, next);  // to itself: its saved stack pointer is an old one
}

void wait_in(const char* what) {
  Thread* me = current_thread;
  me->waits_in = what;
  run_next(&me->stack_pointer);
}

void release_barrier() {
  Block& block = *current_block;
  block.epoch++;
  block.waiting = 0;
  block.predicate_result = std::exchange(block.predicate_count, 0);
  const std::vector<uint32_t> threads = std::exchange(block.at_barrier, {});
  for (const uint32_t t : threads) make_ready(t);
}

int barrier_count(bool predicate) {
  Block& block = *current_block;
  Thread* me = current_thread;
  block.predicate_count += predicate;
  if (block.waiting + 1 < block.live) {
    block.waiting++;
    block.at_barrier.push_back(me->linear);
    wait_in("__syncthreads");
  } else {
    release_barrier();
    if (options().seed) {
      make_ready(me->linear);
      wait_in("__syncthreads");
    }
  }
  return block.predicate_result;
}

void barrier() { barrier_count(false); }

void collective(uint32_t mask, Collective operation, void* argument, const char* name) {
  Thread* me = current_thread;
  Warp& warp = current_block->warp[me->warp];
  const uint32_t bit = 1u << me->lane;
  mask &= warp.valid;
  if (!(mask & bit)) die("%s: the calling lane is not in mask %08x", name, mask);
  if (mask & warp.exited) die("%s: mask %08x names lanes that have exited (%08x)", name, mask, warp.exited);
  Rendezvous* meeting = nullptr;
  for (Rendezvous& open : warp.open) {
    if (open.mask & bit) {
      if (open.mask != mask || open.operation != operation)
        die("%s: divergent operation of a warp: mask %08x, other lanes wait on mask %08x%s", name, mask, open.mask,
            open.operation != operation ? " in another operation" : "");
      meeting = &open;
    } else if (open.mask & mask) {
      die("%s: overlapping masks %08x and %08x", name, mask, open.mask);
    }
  }
  if (!meeting) {
    meeting = &warp.open.emplace_back();
    meeting->mask = mask;
    meeting->operation = operation;
  }
  meeting->arrived |= bit;
  meeting->arguments[me->lane] = argument;
  if (meeting->arrived != mask) {
    wait_in(name);
    return;
  }
  Rendezvous full = *meeting;
  warp.open.erase(warp.open.begin() + (meeting - warp.open.data()));
  operation(mask, full.arguments);
  const uint32_t first = me->linear - me->lane;
  for (uint32_t lane = 0; lane < 32; lane++)
    if ((mask & ~bit) >> lane & 1) make_ready(first + lane);
}

void sync_warp(uint32_t mask) {
  char unused;
  collective(mask, [](uint32_t, void**) { current_block->warp[current_thread->warp].epoch++; }, &unused, "__syncwarp");
}

}  // namespace freetoken::emu
