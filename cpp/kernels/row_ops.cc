#include "kernels/row_ops.h"

#include "kernels/isa_table.h"

namespace freetoken {
FT_ISA_TABLE(RowKernels, kRowKernels, row_kernels)
}  // namespace freetoken
