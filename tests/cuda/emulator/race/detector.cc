// Finds pairs of accesses that nothing orders, whatever order the fibers ran in: within a block between two barriers,
// within a warp between two __syncwarp, and between blocks of a launch. For each byte it keeps the last writer and two
// groups of readers; a third group may be forgotten, so a race can be missed but none is made up.
#include <array>
#include <cstdio>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "emulator/launch.h"
#include "emulator/options.h"
#include "memory/memory.h"
#include "race/memory_stats.h"
#include "simt/fiber.h"

namespace freetoken::emu {
namespace {

struct Record {        // who touched a byte
  uint32_t block = 0;  // serial; 0: nobody
  uint32_t lanes = 0;
  uint16_t epoch = 0, warp_epoch = 0;
  uint8_t warp = 0;
  bool atomic = false;
};
struct Cell {
  Record writer, reader, other_reader;
};
constexpr size_t kPageBytes = 4096;
using Page = std::array<Cell, kPageBytes>;

std::unordered_map<uintptr_t, std::unique_ptr<Page>> global_pages;  // by address / kPageBytes
std::vector<Cell> shared_cells;
std::set<void*> told;
uint64_t race_count = 0;

bool unordered(const Record& other, bool shared, bool atomic, uint32_t lane_bit) {
  const Block& block = *current_block;
  const Thread& me = *current_thread;
  if (other.block == 0 || (atomic && other.atomic)) return false;
  if (other.block != uint32_t(block.serial))
    return !shared && other.block >= uint32_t(block.launch_serial);  // another block of this launch
  if (other.epoch != uint16_t(block.epoch)) return false;
  if (other.warp == uint8_t(me.warp)) return other.warp_epoch == block.warp[me.warp].epoch && (other.lanes & ~lane_bit);
  return true;
}

void report(const char* kind, const void* p, bool shared, const Record& other, void* pc) {
  race_count++;
  const Block& block = *current_block;
  const char* where = other.block == uint32_t(block.serial) ? "of this block" : "of another block";
  const size_t offset = shared ? size_t(static_cast<const char*>(p) - block.shared) : 0;
  if (!options().report_races)
    die("RACE: %s at %s memory %p (shared offset %zu), with warp %u, lanes %08x %s; pc %p", kind,
        shared ? "shared" : "global", p, offset, other.warp, other.lanes, where, pc);
  if (told.insert(pc).second)
    std::fprintf(stderr, "emulator: RACE: %s, %s: %s memory %p, thread %u with warp %u, lanes %08x %s; pc %p\n",
                 block.kernel->name, kind, shared ? "shared" : "global", p, current_thread->linear, other.warp,
                 other.lanes, where, pc);
}

void check_byte(Cell& cell, const char* p, bool shared, Access access, const Record& me, void* pc) {
  const bool atomic = access == Access::kAtomic, write = access != Access::kRead;
  if (unordered(cell.writer, shared, atomic, me.lanes))
    report(write ? "write after write" : "read after write", p, shared, cell.writer, pc);
  if (write) {
    for (const Record* r : {&cell.reader, &cell.other_reader})
      if (unordered(*r, shared, atomic, me.lanes)) {
        report("write after read", p, shared, *r, pc);
        break;
      }
    cell.writer = me;
    return;
  }
  Record& r = cell.reader;
  if (r.block == me.block && r.warp == me.warp && r.epoch == me.epoch && r.warp_epoch == me.warp_epoch) {
    r.lanes |= me.lanes;
    return;
  }
  if (r.warp != me.warp || r.block != me.block) cell.other_reader = r;
  r = me;
}

Cell* shared_cell(const char* p) {
  const Block& block = *current_block;
  if (shared_cells.empty()) shared_cells.resize(block.shared_capacity);
  return &shared_cells[size_t(p - block.shared)];
}

Cell* global_cell(const char* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  auto& page = global_pages[address / kPageBytes];
  if (!page) page = std::make_unique<Page>();
  return &(*page)[address % kPageBytes];
}

bool on_stacks(const char* p) {
  const Block& block = *current_block;
  return p >= block.stacks && p < block.stacks + block.threads * kStackBytes;
}

// Out-of-range and freed addresses have no shadow: they end the process here, with the place in the kernel.
void check_range(const char* p, size_t bytes, const Owner& owner) {
  const Arena& arena = owner.place == Place::kDevice ? device_memory(owner.device) : pinned_memory();
  if (owner.place == Place::kDevice && owner.device != current_block->kernel->device)
    die("access to the memory of device %d at %p", owner.device, static_cast<const void*>(p));
  if (!arena.is_live(p, bytes))
    die("access of %zu bytes at %p: freed memory, or beyond an allocation", bytes, static_cast<const void*>(p));
}

}  // namespace

void note_access(const void* pointer, size_t bytes, Access access, void* pc) {
  const Block* block = current_block;
  const Thread* me = current_thread;
  if (!block || !me) return;
  const auto* p = static_cast<const char*>(pointer);
  if (on_stacks(p)) return;
  const bool shared = p >= block->shared && p < block->shared + block->shared_capacity;
  if (!shared) {
    const Owner owner = owner_of(p);
    if (owner.place == Place::kElsewhere) return;
    check_range(p, bytes, owner);
  }
  if (access != Access::kAtomic) count_access(p, bytes, access == Access::kWrite, shared, pc);
  const Record record{uint32_t(block->serial),     1u << me->lane,    uint16_t(block->epoch),
                      block->warp[me->warp].epoch, uint8_t(me->warp), access == Access::kAtomic};
  Cell* cell = nullptr;
  for (size_t i = 0; i < bytes; i++) {
    if (!cell || (!shared && reinterpret_cast<uintptr_t>(p + i) % kPageBytes == 0))
      cell = shared ? shared_cell(p + i) : global_cell(p + i);
    check_byte(*cell, p + i, shared, access, record, pc);
    cell++;
  }
}

uint64_t take_races() {
  told.clear();
  return std::exchange(race_count, 0);
}

}  // namespace freetoken::emu
