// Scratch: the memory between the kernels of one operation, and what a lane keeps of its routing. Sized once, by reserve().
#pragma once
#include <vector>

#include "cuda/runtime/memory.h"
#include "ops/ops.h"

namespace freetoken::cuda {

constexpr int kSplitRows = 8;  // up to so many rows attention is split over blocks

struct LaneScratch {
  DeviceBuffer ids, weights;   // [rows * experts per token]
  DeviceBuffer outputs;        // [rows * experts per token, hidden]; empty: the main lane's serve
  // Of the last route() that was recorded.
  int rows = 0, experts = 0, per_token = 0, next_expert = 0;
};

struct Scratch {
  Status reserve(MemoryAccount& account, const OpsLimits& limits, const ModelSpec& spec, int vocab);

  int64_t inner_floats = 0;
  DeviceBuffer inner;          // outputs of gate and up after their activation
  DeviceBuffer wide;           // gate and up apart, or interleaved: twice as many
  DeviceBuffer router_logits;  // [rows, experts]
  DeviceBuffer groups;
  DeviceBuffer sample;
  int64_t attention_floats = 0;
  DeviceBuffer attention;
  LaneScratch lanes[kLanes];
  float* outputs(Lane lane) { return (lanes[int(lane)].outputs.bytes() ? lanes[int(lane)] : lanes[0]).outputs.as<float>(); }
};

// Floats of a row of scratch.
constexpr int64_t scratch_stride(int cols) { return (int64_t(cols) + kTileRows - 1) / kTileRows * kTileRows; }

}  // namespace freetoken::cuda
