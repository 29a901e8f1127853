// Experts as a device sees them: one contiguous extent each, found through a resolver.
#pragma once
#include <cstdint>
#include <span>

#include "core/status.h"
#include "quant/format.h"

namespace freetoken {

// Byte layout of one expert's extent, the same for all experts of a layer. gate and up are interleaved by 16 rows in one
// matrix when they have one format (up_offset < 0), two plain matrices otherwise.
struct ExpertLayout {
  WeightFormat gate_format = WeightFormat::kF32, up_format = WeightFormat::kF32, down_format = WeightFormat::kF32;
  int32_t hidden = 0, inner = 0;
  int64_t gate_offset = 0, up_offset = -1, down_offset = 0, bytes = 0;
};

struct ExpertAnswer {
  enum class Kind { kAddress, kComputeHere, kFailed };
  Kind kind = Kind::kFailed;
  uint64_t address = 0;  // kAddress: where the extent is readable by the device that asked
  Status error;          // kFailed
};

// The host's side of residency. A device posts the experts that a layer of a step needs, computes those that are there,
// and takes the answers for the others as they come. CpuOps calls it directly; a GPU goes through its mailbox.
class ExpertResolver {
 public:
  virtual ~ExpertResolver() = default;
  // The addresses of all experts of a layer where they are there for good: a device then need not ask. Else empty.
  virtual std::span<const uint64_t> resident(int layer) const { return {}; }
  // Announces all experts of one layer of one step (distinct, ascending). Returns without waiting for any read.
  virtual void post(int layer, std::span<const int32_t> experts) = 0;
  // The answer for one posted expert; blocks until there is one. Callable from any worker.
  virtual ExpertAnswer wait(int layer, int expert) = 0;
  // The step has read all posted experts of the layer; their slots may be reused.
  virtual void release(int layer) = 0;
};

struct ExpertSet {
  int layer = 0;        // model layer, the resolver's key
  int experts = 0;
  ExpertLayout layout;
  ExpertResolver* resolver = nullptr;
};

}  // namespace freetoken
