// What one block of a matmul works on, and how it stores its results.
#pragma once
#include "cuda/kernels/device.h"
#include "cuda/kernels/matmul_args.h"

namespace freetoken::cuda {

struct MatmulJob {
  MatmulTarget target;
  const uint8_t* weight;   // null: the expert could not be had
  int block;               // within the target
  const int32_t* order;    // null: places are entries
  int first, columns;      // places first .. first + columns - 1
};

// False where the block has nothing to do. `width`: columns of a block.
FT_DEV bool find_job(const MatmulArgs& args, int width, MatmulJob& job) {
  const int block = int(blockIdx.x), group = int(blockIdx.y);
  job.target = args.target[0];
#pragma unroll
  for (int i = 1; i < kMaxLinearTargets; i++)  // constant indices: the parameters stay where they are
    if (i < args.targets && block >= args.target[i].first_block) job.target = args.target[i];
  job.block = block - job.target.first_block;
  job.weight = job.target.weight;
  job.order = nullptr;
  int expert = 0;
  if (args.groups.order) {
    if (group >= *args.groups.tile_count) return false;
    expert = args.groups.tile_expert[group];
    job.order = args.groups.order;
    job.first = args.groups.tile_begin[group];
    job.columns = args.groups.tile_size[group];
  } else if (args.one_entry) {
    expert = args.choice[group];
    if (expert < args.begin || expert >= args.end) return false;
    job.first = group;
    job.columns = 1;
  } else {
    job.first = group * width;
    job.columns = min(width, args.entries - job.first);
  }
  if (args.choice) {
    const uint64_t extent = args.extents[expert];
    job.weight = extent ? reinterpret_cast<const uint8_t*>(extent) + job.target.offset_bytes : nullptr;
  }
  return true;
}

FT_DEV int job_entry(const MatmulJob& job, int column) {
  const int place = job.first + column;
  return job.order ? job.order[place] : place;
}
FT_DEV const float* job_input(const MatmulArgs& args, int entry) {
  return args.x + (args.by_row ? entry / args.ranks : entry) * args.x_stride;
}

// Four neighbouring values of an output row, from column n0 on; what lies past n is dropped.
FT_DEV void store_four(float* row, int n0, int n, const float (&v)[4]) {
  if (n0 + 4 <= n) {
    store16(row + n0, make_float4(v[0], v[1], v[2], v[3]));
    return;
  }
  for (int j = 0; j < 4; j++)
    if (n0 + j < n) row[n0 + j] = v[j];
}

// Sums after products are rounded by name, so that no kernel has them contracted where another has not.
FT_DEV float silu(float v) { return v / __fadd_rn(1.0f, expf(-v)); }

// Bias, scale and softcap on four neighbouring values.
FT_DEV void finish_row(const float* bias, float scale, float softcap, int n0, int n, float (&v)[4]) {
#pragma unroll
  for (int j = 0; j < 4; j++) {
    if (bias && n0 + j < n) v[j] = __fadd_rn(v[j], bias[n0 + j]);
    if (scale != 1.0f) v[j] *= scale;
    if (softcap > 0.0f) v[j] = softcap * tanhf(v[j] / softcap);
  }
}

// Results of four rows of half `half` of tile `tile` of a plain matrix, for one entry.
FT_DEV void finish_linear(const MatmulArgs& args, const MatmulTarget& target, int tile, int half, int q, int entry,
                          float (&v)[4]) {
  const int n0 = tile * 32 + half * 16 + q * 4;
  finish_row(target.bias, args.scale, args.softcap, n0, target.n, v);
  store_four(target.out + entry * target.out_stride, n0, target.n, v);
}

// The same of a gate/up pair, where half 0 is the gate.
FT_DEV void finish_gated(const MatmulTarget& target, int tile, int q, int entry, float (&gate)[4],
                         const float (&up)[4]) {
  const int n0 = tile * 16 + q * 4;
  for (int j = 0; j < 4; j++) {
    float u = up[j];
    if (target.bias && n0 + j < target.n) gate[j] = __fadd_rn(gate[j], target.bias[n0 + j]);
    if (target.bias2 && n0 + j < target.n) u = __fadd_rn(u, target.bias2[n0 + j]);
    gate[j] = silu(gate[j]) * u;
  }
  store_four(target.out + entry * target.out_stride, n0, target.n, gate);
}

}  // namespace freetoken::cuda
