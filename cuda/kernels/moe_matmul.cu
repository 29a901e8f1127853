#include "cuda/kernels/moe_matmul.h"

#include "cuda/kernels/matmul_launch.h"
#include "cuda/kernels/moe_matmul_groups-inl.h"

namespace freetoken::cuda {
namespace {

constexpr int kNarrowEntries = variant_columns(MatmulVariant::kNarrow),
              kWideEntries = variant_columns(MatmulVariant::kWide);

// An expert's last tile may be short.
int most_tiles(int entries, int experts, int width) { return entries / width + std::min(entries, experts); }

cudaError_t run(const ExpertChoice& choice, const ExpertGroups* groups, const ExpertMatrix& matrix, Rows in,
                EntryInput input, bool gated, float* out, int64_t out_stride, cudaStream_t stream) {
  if (!expert_supports(matrix.format)) return cudaErrorNotSupported;
  if (choice.entries() == 0) return cudaSuccess;
  MatmulArgs args = dense_args(in, choice.entries(), matrix.k, int64_t(tile_bytes(matrix.format, matrix.k)));
  args.gated = gated;
  args.ranks = choice.ranks;
  args.by_row = input == EntryInput::kRow;
  args.choice = choice.expert;
  args.extents = choice.extents;
  args.begin = choice.begin;
  args.end = choice.end;
  args.targets = 1;
  MatmulTarget& target = args.target[0];
  target.offset_bytes = matrix.offset_bytes;
  target.out = out;
  target.out_stride = out_stride;
  target.n = matrix.n;
  if (!groups) {
    args.one_entry = true;
    return launch_matmul(matrix.format, MatmulVariant::kDecode, args, choice.entries(), stream);
  }
  args.groups = *groups;
  const MatmulVariant variant = groups->tile_entries == kWideEntries ? MatmulVariant::kWide : MatmulVariant::kNarrow;
  return launch_matmul(matrix.format, variant, args, groups->max_tiles, stream);
}

__global__ void __launch_bounds__(256) combine_kernel(const float* entry_out, int64_t entry_stride, const float* weight,
                                                      int ranks, int n, float* out, int64_t out_stride) {
  const int64_t row = blockIdx.x;
  const int i = int(blockIdx.y) * 256 + int(threadIdx.x);
  if (i >= n) return;
  float sum = 0.0f;
  for (int rank = 0; rank < ranks; rank++) {
    const int64_t entry = row * ranks + rank;
    sum = fmaf(weight[entry], entry_out[entry * entry_stride + i], sum);
  }
  out[row * out_stride + i] = sum;
}

}  // namespace

bool expert_supports(WeightFormat format) { return mma_format(format); }

// Up to four rows, an expert seldom has two of the entries.
bool experts_grouped(int rows) { return rows > 4; }
int expert_tile_entries(int entries, int experts) { return entries < 16 * experts ? kNarrowEntries : kWideEntries; }

size_t expert_groups_bytes(int max_entries, int max_experts) {
  const size_t tiles = size_t(most_tiles(max_entries, max_experts, kNarrowEntries));
  return align_up((1 + 3 * tiles + size_t(max_entries)) * sizeof(int32_t), 16);
}

ExpertGroups expert_groups(void* memory, int entries, int experts) {
  ExpertGroups groups;
  groups.tile_entries = expert_tile_entries(entries, experts);
  groups.max_tiles = most_tiles(entries, experts, groups.tile_entries);
  groups.tile_count = static_cast<int32_t*>(memory);
  groups.tile_expert = groups.tile_count + 1;
  groups.tile_begin = groups.tile_expert + groups.max_tiles;
  groups.tile_size = groups.tile_begin + groups.max_tiles;
  groups.order = groups.tile_size + groups.max_tiles;
  return groups;
}

cudaError_t launch_group_experts(const ExpertChoice& choice, const ExpertGroups& groups, cudaStream_t stream) {
  if (choice.experts > kMaxGroupedExperts) return cudaErrorInvalidValue;
  FT_LAUNCH((group_kernel), dim3(1), dim3(kGroupThreads), 0, stream, choice.expert, choice.entries(), choice.begin,
            choice.end, groups);
  return cudaGetLastError();
}

cudaError_t launch_expert_linear(const ExpertChoice& choice, const ExpertGroups* groups, const ExpertMatrix& matrix,
                                 Rows in, EntryInput input, float* out, int64_t out_stride, cudaStream_t stream) {
  return run(choice, groups, matrix, in, input, false, out, out_stride, stream);
}

cudaError_t launch_expert_gated(const ExpertChoice& choice, const ExpertGroups* groups, const ExpertMatrix& matrix,
                                Rows x, float* out, int64_t out_stride, cudaStream_t stream) {
  return run(choice, groups, matrix, x, EntryInput::kRow, true, out, out_stride, stream);
}

cudaError_t launch_combine_experts(const float* entry_out, int64_t entry_stride, const float* weight, int rows,
                                   int ranks, int n, float* out, int64_t out_stride, cudaStream_t stream) {
  if (rows == 0 || n == 0) return cudaSuccess;
  FT_LAUNCH((combine_kernel), dim3(unsigned(rows), unsigned(ceil_div(n, 256))), dim3(256), 0, stream, entry_out,
            entry_stride, weight, ranks, n, out, out_stride);
  return cudaGetLastError();
}

}  // namespace freetoken::cuda
