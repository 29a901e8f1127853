// Matmul kernels on T32 weights: one set of packed bytes serves GEMV and grouped GEMM on every ISA level.
//
// Numerics (the scalar level is the definition; all levels equal it bit for bit). Every output element is one
// accumulator chain over ascending k, so it depends on neither the number of rows nor how threads share the tiles:
//   kBF16       for each pair: acc = fma(w[k+1], x[k+1], acc), then acc = fma(w[k], x[k], acc)   (what vdpbf16ps does)
//   kZeroPoint  per 32 k: acc = fma(float(sum(w q)), d * s, acc), the integer sum exact
//   kMin        per 32 k: acc = fma(float(isum), d * s, acc), then acc = fma(m, s * sum(q), acc)
//   kBlocks16   per 16 k: acc = fma(float(isum16), (d * sc) * s, acc)
//   kF32        acc = fma(decode(w)[k], x[k], acc), for every format
// Denormals are flushed (FTZ and DAZ): callers have run set_denormals_to_zero() on the thread. vdpbf16ps flushes
// whatever the thread says, and equals the two fma bit for bit (checked on 192 million random products, denormals
// included).
#pragma once
#include <cstdint>

#include "platform/cpu_features.h"
#include "quant/format.h"

namespace freetoken {

struct PackedMatrix {
  WeightFormat format;
  int n = 0, k = 0;               // logical rows and columns
  const uint8_t* data = nullptr;  // packed_bytes(format, n, k), 64-byte aligned
};

struct MatmulKernels {
  // Narrows x[0..k) to one row of `kind` (activation_row_bytes; any alignment). s = max|x| / 127, q = round to nearest
  // even (x * (127 / max|x|)); a block whose s would be denormal has s = 0 and q = 0. Infinity and NaN make s infinite
  // or NaN, so they reach every output of the row.
  void (*encode_row)(ActivationKind kind, const float* x, int k, uint8_t* row);

  // out[m][32 t + i] = row m . weight row 32 t + i for tiles t in [tile_begin, tile_end) and m < rows.
  // `out[m]` has room for whole tiles; only the tiles asked for are written. `kind` is traits(format).activation or
  // kF32. `next`: weights this thread reads afterwards, prefetched near the end; may be null. Any number of threads may
  // work on disjoint tiles. Rows a power of two of bytes apart share cache sets: give them an odd stride in lines.
  void (*matmul_tiles)(const PackedMatrix& w, int tile_begin, int tile_end, int rows, ActivationKind kind,
                       const uint8_t* const* activations, float* const* out, const uint8_t* next);
};

// The table of a level; the caller has checked that the CPU supports it.
const MatmulKernels& matmul_kernels(IsaLevel level);

}  // namespace freetoken
