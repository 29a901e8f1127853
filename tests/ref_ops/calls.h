// The calls of a step as RefOps keeps them: handles, numbers and sizes (the shape), and places in the step's data.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "ops/ops.h"
#include "ref_ops/device_memory.h"

namespace freetoken::ref {

struct EmbedCall {
  Weight table;
  float scale = 1;
  Tensor out;
};
struct NormCall {
  Tensor x;
  NormSpec spec;
  Tensor weight, bias, out;
};
struct LinearCall {
  Tensor x;
  std::vector<LinearOutput> outputs;
};
struct AttentionCall {
  AttentionSpec spec;
  AttentionArgs args;  // its spec pointer is not used
};
struct AddCall {
  Tensor x, y;
  float scale = 1;
};
struct MlpCall {
  Tensor x;
  MlpArgs args;
  Tensor out;
};
struct RouteCall {
  Lane lane = Lane::kMain;
  Tensor x;
  MoeSpec spec;
  Weight router;
};
struct MoeCall {
  Lane lane = Lane::kMain;
  Tensor x;
  MoeSpec spec;
  ExpertSet experts;
  ExpertRange part;
  Tensor out;
};
struct GatherCall {
  Tensor x;
  int rows = 0;
  Tensor out;
  size_t data = 0;  // of StepData::gathers
};
struct LogitsCall {
  Tensor x;
  Weight head;
  Tensor bias;
  float scale = 1, softcap = 0;
  Tensor out;
};
struct SampleCall {
  Tensor logits;
  int rows = 0;
  size_t data = 0;  // of StepData::samples
};
struct ReadCall {
  Tensor tensor;
  size_t data = 0;  // of StepData::reads
};
struct ProbeCall {
  size_t data = 0;  // of StepData::probes
};
using Call = std::variant<EmbedCall, NormCall, LinearCall, AttentionCall, AddCall, MlpCall, RouteCall, MoeCall, GatherCall,
                          LogitsCall, SampleCall, ReadCall, ProbeCall>;
const char* call_name(const Call& call);

// What may differ between two steps of one shape. Owns all but what the device writes to the host.
struct StepData {
  struct Sample {
    std::vector<SampleRow> rows;                 // `ahead` points into the next
    std::vector<std::vector<int32_t>> ahead;
    std::span<SampleResult> results;
  };
  std::vector<BatchRow> rows;
  std::vector<BatchSequence> sequences;          // without pages
  std::vector<std::vector<int32_t>> pages;       // [sequence * groups + group]
  std::vector<std::vector<int32_t>> gathers;
  std::vector<Sample> samples;
  std::vector<std::span<float>> reads;
  std::vector<std::function<void(DeviceMemory&)>> probes;
};

// The shape of a step as numbers: what was called with which numbers, sizes and weights, and, apart, which buffers.
struct Shape {
  std::vector<uint64_t> numbers, buffers;
  bool operator==(const Shape&) const = default;
};
void add_step_to_shape(const StepData& data, Shape* shape);
void add_call_to_shape(const Call& call, Shape* shape);

}  // namespace freetoken::ref
