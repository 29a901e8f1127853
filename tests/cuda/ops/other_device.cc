// Makes the cases of tests/cpp/ops, which are part of this program, run on CudaOps.
#include "cuda_device.h"
#include "ops/test_device.h"

namespace freetoken::testing {
namespace {

const bool registered = [] {
  other_device = [](std::vector<uint8_t> usable) -> std::unique_ptr<Ops> { return make_cuda(std::move(usable)); };
  return true;
}();

}  // namespace
}  // namespace freetoken::testing
