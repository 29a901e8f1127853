#include "kernels/attention.h"

#include "kernels/isa_table.h"

namespace freetoken {
FT_ISA_TABLE(AttentionKernels, kAttentionKernels, attention_kernels)
}  // namespace freetoken
