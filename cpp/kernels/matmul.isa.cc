// The matmul table of one ISA level.
#include "kernels/matmul.h"

#include "kernels/encode_scalar-inl.h"
#include "kernels/matmul_scalar-inl.h"

namespace freetoken::FT_ISA {

extern const MatmulKernels kMatmulKernels = {encode_row, matmul_tiles};

}  // namespace freetoken::FT_ISA
