// The arguments of the matmul kernels, dense and of experts: a dense one is the case of one rank and no choice.
#pragma once
#include "cuda/kernels/moe_matmul.h"

namespace freetoken::cuda {

// One matrix of a launch. For a gate/up pair n is the inner size and bias, bias2 are gate's and up's.
struct MatmulTarget {
  const uint8_t* weight;  // null: in the expert's extent
  int64_t offset_bytes;   // within the extent
  const float *bias, *bias2;
  float* out;
  int64_t out_stride;
  int n, tiles, first_block;
};

struct MatmulArgs {
  const float* x;
  int64_t x_stride;
  int k, partition_k;
  int64_t tile_bytes;
  bool gated;
  float scale, softcap;  // softcap 0: neither is applied when scale is 1
  int entries, ranks;    // dense: rows and 1
  bool by_row;           // input row entry / ranks, otherwise row entry
  bool one_entry;        // a block has one entry, number blockIdx.y
  // Experts; choice is null in a dense matmul.
  const int32_t* choice;
  const uint64_t* extents;
  int begin, end;
  ExpertGroups groups;   // order is null where not grouped
  int targets;
  MatmulTarget target[kMaxLinearTargets];
};

}  // namespace freetoken::cuda
