// Expert matmuls on T32 extents. An entry is a (row, rank): entry = row * ranks + rank. Every entry's output is stored
// on its own and launch_combine_experts() adds them in rank order. Formula per element as in matmul.h, in both forms:
//   by entry    (groups == null) one entry per block: decode
//   grouped     entries sorted by expert on the device, tiles of entries of one expert: prefill
//
// Expert e of the layer lies at extents[e], a device array of addresses: in `fused` of all extents, in `offload` of the
// slots that the admission filled in for this layer. Where it is null the entry's output is NaN.
#pragma once
#include "cuda/kernels/matmul.h"

namespace freetoken::cuda {

// What the router chose, and the part of the experts that this call works on: entries of other experts are left alone.
struct ExpertChoice {
  const int32_t* expert = nullptr;        // [rows, ranks], device
  int rows = 0, ranks = 0, experts = 0;
  int begin = 0, end = 0;                 // experts [begin, end)
  const uint64_t* extents = nullptr;      // [experts], device
  int entries() const { return rows * ranks; }
};

// Entries sorted by expert, in device memory of expert_groups_bytes(), and cut into tiles of one expert's entries.
struct ExpertGroups {
  int tile_entries = 0;            // of a tile, the last of an expert may have fewer
  int32_t* tile_count = nullptr;   // [1]
  int32_t* tile_expert = nullptr;  // [max_tiles]
  int32_t* tile_begin = nullptr;   // [max_tiles] first place in `order`
  int32_t* tile_size = nullptr;    // [max_tiles]
  int32_t* order = nullptr;        // [entries]
  int max_tiles = 0;
};

// Whether a step of this shape should be grouped, and the tile width then: 16 or 32. Bits do not depend on it.
bool experts_grouped(int rows);
int expert_tile_entries(int entries, int experts);
// Upper bounds over all tile widths: sizes the memory for every step of at most that many entries.
size_t expert_groups_bytes(int max_entries, int max_experts);
ExpertGroups expert_groups(void* memory, int entries, int experts);
// Fills the groups from the choice. One block.
cudaError_t launch_group_experts(const ExpertChoice& choice, const ExpertGroups& groups, cudaStream_t stream);

constexpr int kMaxGroupedExperts = 1024;

// Where an entry reads its input: row entry / ranks of x (gate and up), or row entry (down).
enum class EntryInput { kRow, kEntry };

struct ExpertMatrix {
  WeightFormat format = WeightFormat::kF32;
  int64_t offset_bytes = 0;  // within the extent
  int n = 0, k = 0;          // launch_expert_gated: n is the inner size
};

// bf16, q4_0, q4_1, q8_0, q6_k; others are cudaErrorNotSupported.
bool expert_supports(WeightFormat format);

// out[entry] = W_expert(entry) in
cudaError_t launch_expert_linear(const ExpertChoice& choice, const ExpertGroups* groups, const ExpertMatrix& matrix,
                                 Rows in, EntryInput input, float* out, int64_t out_stride, cudaStream_t stream);
// out[entry] = silu(gate x[row]) * (up x[row]), gate and up interleaved by 16 rows. For pairs of two formats:
// launch_expert_linear() twice, then launch_gated_rows() over the entries.
cudaError_t launch_expert_gated(const ExpertChoice& choice, const ExpertGroups* groups, const ExpertMatrix& matrix,
                                Rows x, float* out, int64_t out_stride, cudaStream_t stream);

// out[r] = fma chain from zero over ascending ranks: weight[r][rank] * entry_out[r * ranks + rank].
cudaError_t launch_combine_experts(const float* entry_out, int64_t entry_stride, const float* weight, int rows,
                                   int ranks, int n, float* out, int64_t out_stride, cudaStream_t stream);

}  // namespace freetoken::cuda
