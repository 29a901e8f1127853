// Which experts of a layer a call needs, which of them lie in slots of device memory, and where the others go: one
// block.
//
// Slots are equal and shared by all layers; the key of an expert is layer * experts + expert. A call (one range of
// experts of one layer) finds the distinct experts of its range among the choices, in ascending order. Those that are
// in a slot are hits. Each miss takes a slot that this call does not need: the ones with the lowest clocks, among equal
// clocks the lowest slots; the i-th miss gets the i-th of them by slot number. So what lies where depends on the calls
// alone, on no timing. A call that keeps (decode) sets the clock of every slot it needs to its own number plus one. One
// that streams (prefill) leaves hits as they are and gives its misses clock 1: the next call that streams takes those
// again, and what decode had used stays.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace freetoken::cuda {

constexpr int kMaxAdmittedExperts = 1024;  // of a layer

struct ExpertCounters {
  uint64_t calls = 0;   // the number of the last call; the first is 1
  uint64_t hits = 0, misses = 0;
};

// All in device memory.
struct ExpertSlotsView {
  int slots = 0, layers = 0, experts = 0;
  uint8_t* memory = nullptr;      // [slots, slot_bytes]
  int64_t slot_bytes = 0;         // a multiple of 16
  int32_t* slot_of = nullptr;     // [layers, experts], -1: in none
  int32_t* owner = nullptr;       // [slots], the key, -1: free
  uint64_t* clock = nullptr;      // [slots], 0: free
  uint32_t* needed_by = nullptr;  // [slots], low half of the number of the last call that needed it
  ExpertCounters* counters = nullptr;
};

struct ExpertMiss {
  int32_t expert, slot;
};

// In pinned host memory: the device asks for extents that it cannot address, a thread of the host answers.
struct MailboxView {
  uint32_t posted;     // low half of the number of the last call that had misses; written last
  uint32_t answered;   // 0 while the stream has to wait, else 1; written last
  uint32_t answer_to;  // `posted`, of the call that the addresses below are for
  uint32_t released;   // `posted`, of the last call whose extents the device has read
  uint32_t fault;      // `posted`, of the last call that was answered for another one; 0: none
  int32_t layer, count;
  int32_t expert[kMaxAdmittedExperts];
  uint64_t address[kMaxAdmittedExperts];  // 0: there is none
};

struct AdmissionCall {
  int layer = 0;
  const int32_t* choice = nullptr;  // [entries], device
  int entries = 0;
  int begin = 0, end = 0;           // experts of other numbers are left alone
  bool keep = true;
  uint64_t* extents = nullptr;      // [experts], device; out: the slots of the needed experts, 0 for all others
  int32_t* miss_count = nullptr;    // [1], device; out
  ExpertMiss* misses = nullptr;     // [experts], device; out, ascending experts
  MailboxView* mailbox = nullptr;   // misses are posted; null: launch_gather_experts() is given their addresses
};

// cudaErrorInvalidValue where the call could need more experts than there are slots.
cudaError_t launch_admit_experts(const ExpertSlotsView& slots, const AdmissionCall& call, cudaStream_t stream);

}  // namespace freetoken::cuda
