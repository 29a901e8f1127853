// Expert matmuls: 8 of 128 experts for each row, all different rows' choices spread over the experts.
#include <string>

#include "cuda/kernels/moe_matmul.h"
#include "gpu_check/cases.h"
#include "gpu_check/device_memory.h"
#include "quant/t32.h"

namespace freetoken::gpu_check {
namespace {

constexpr int kHidden = 2048, kInner = 768, kExperts = 128, kRanks = 8;

void time_gated(WeightFormat format, int rows, const Take& take) {
  const int64_t expert_bytes = int64_t(packed_bytes(format, 2 * kInner, kHidden));
  const DeviceMemory weights(size_t(expert_bytes) * kExperts), x(size_t(rows) * kHidden * 4);
  const DeviceMemory out(size_t(rows) * kRanks * kInner * 4);
  std::vector<uint64_t> extents;
  for (int e = 0; e < kExperts; e++) extents.push_back(uint64_t(reinterpret_cast<uintptr_t>(weights.bytes())) + expert_bytes * e);
  const DeviceMemory addresses(extents);
  // Copy i chooses other experts than copy i - 1: the experts together are cold.
  const int copies = rows > 16 ? 1 : kExperts / kRanks;
  std::vector<int32_t> chosen;
  for (int copy = 0; copy < copies; copy++)
    for (int row = 0; row < rows; row++)
      for (int rank = 0; rank < kRanks; rank++) chosen.push_back((copy * kRanks + row * 37 + rank) % kExperts);
  const DeviceMemory experts(chosen);
  const auto choice_of = [&](int copy) {
    cuda::ExpertChoice choice;
    choice.expert = experts.as<int32_t>() + size_t(copy) * rows * kRanks;
    choice.rows = rows, choice.ranks = kRanks, choice.experts = kExperts;
    choice.begin = 0, choice.end = kExperts;
    choice.extents = addresses.as<uint64_t>();
    return choice;
  };
  const bool grouped = cuda::experts_grouped(rows);
  const DeviceMemory memory(cuda::expert_groups_bytes(rows * kRanks, kExperts));
  const cuda::ExpertGroups groups = cuda::expert_groups(memory.bytes(), rows * kRanks, kExperts);
  if (grouped) check(cuda::launch_group_experts(choice_of(0), groups, nullptr), "launch_group_experts");
  check(cudaDeviceSynchronize(), "launch_group_experts");

  TimedCase timed;
  timed.name = std::string("experts gated ") + kFormatTraits[int(format)].name + " rows " + std::to_string(rows);
  timed.bytes = expert_bytes * std::min(rows * kRanks, kExperts) + int64_t(x.size() + out.size());
  timed.flops = grouped ? 2.0 * 2 * kInner * kHidden * rows * kRanks : 0;
  timed.copies = copies;
  timed.launch = [&](int copy, cudaStream_t stream) {
    cuda::ExpertMatrix matrix;
    matrix.format = format;
    matrix.n = kInner, matrix.k = kHidden;
    return cuda::launch_expert_gated(choice_of(copy), grouped ? &groups : nullptr, matrix, {x.as<float>(), kHidden},
                                     out.as<float>(), kInner, stream);
  };
  take(timed);
}

}  // namespace

void expert_cases(const Take& take) {
  for (const WeightFormat format : {WeightFormat::kBF16, WeightFormat::kQ8_0, WeightFormat::kQ4_0})
    for (const int rows : {1, 4, 512}) time_gated(format, rows, take);
}

}  // namespace freetoken::gpu_check
