// The matmul table of one ISA level. The scalar level is written apart: it is what the others are compared with.
#include "kernels/matmul.h"

#if FT_ISA_scalar
#include "kernels/encode_scalar-inl.h"
#include "kernels/matmul_scalar-inl.h"
#else
#include "kernels/encode-inl.h"
#include "kernels/matmul_int-inl.h"
#include "kernels/matmul_values-inl.h"
#if FT_ISA_avx512bf16
#include "kernels/matmul_bf16-inl.h"
#endif
#endif

namespace freetoken::FT_ISA {
#if !FT_ISA_scalar
namespace {

void run_bf16(const Job& job) {
#if FT_ISA_avx512bf16
  if (job.rows < kBf16ValueRows || !fma_beats_vdpbf16()) return run_packed<Bf16Kernel>(job);
#endif
  run_values<HalfValues<true, true>>(job, true);
}

// One chunk of rows reads the packed codes; more rows read them expanded.
template <class Packed>
void run_integer(const Job& job) {
  using Wide = Expanded<Packed>;
  if (job.rows <= kIntegerRows)
    run_packed<IntegerKernel<Packed>>(job);
  else
    run_expanded<IntegerKernel<Wide>, Wide, Packed>(job);
}

void matmul_tiles(const PackedMatrix& w, int tile_begin, int tile_end, int rows, ActivationKind kind,
                  const uint8_t* const* activations, float* const* out, const uint8_t* next) {
  const Job job = {w, tile_begin, tile_end, rows, activations, out, next};
  if (kind == ActivationKind::kF32) return run_f32_activations(job);
  switch (w.format) {
    case WeightFormat::kBF16: return run_bf16(job);
    case WeightFormat::kQ8_0: return run_packed<IntegerKernel<Q8Format>>(job);
    case WeightFormat::kQ4_0: return run_integer<Q4Format>(job);
    case WeightFormat::kQ4_1: return run_integer<Q4MinFormat>(job);
    case WeightFormat::kQ6_K: return run_integer<Q6Format>(job);
    default: return run_f32_activations(job);
  }
}

}  // namespace
#endif

extern const MatmulKernels kMatmulKernels = {encode_row, matmul_tiles};

}  // namespace freetoken::FT_ISA
