#include "kernels/matmul.h"

namespace freetoken {

namespace scalar { extern const MatmulKernels kMatmulKernels; }
namespace avx2 { extern const MatmulKernels kMatmulKernels; }
namespace avx2vnni { extern const MatmulKernels kMatmulKernels; }
namespace avx512 { extern const MatmulKernels kMatmulKernels; }
namespace avx512vnni { extern const MatmulKernels kMatmulKernels; }
namespace avx512bf16 { extern const MatmulKernels kMatmulKernels; }

const MatmulKernels& matmul_kernels(IsaLevel level) {
  switch (level) {
    case IsaLevel::kScalar: break;
    case IsaLevel::kAvx2: return avx2::kMatmulKernels;
    case IsaLevel::kAvx2Vnni: return avx2vnni::kMatmulKernels;
    case IsaLevel::kAvx512: return avx512::kMatmulKernels;
    case IsaLevel::kAvx512Vnni: return avx512vnni::kMatmulKernels;
    case IsaLevel::kAvx512Bf16: return avx512bf16::kMatmulKernels;
  }
  return scalar::kMatmulKernels;
}

}  // namespace freetoken
