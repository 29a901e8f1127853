// A whole model in several of the orders that the emulator can run streams, blocks and threads in.
#include "emulator/options.h"
#include "model_case.h"

namespace freetoken {
namespace {

using namespace freetoken::testing;

class CudaSchedules : public CudaModel {};

// The emulator runs streams, blocks and threads in an order that its seed chooses; only what the backend orders is fixed.
TEST_P(CudaSchedules, NoScheduleChangesABit) {
  std::vector<Request> requests;
  for (auto& p : prompts({35, 4})) requests.push_back(greedy_with_logits(std::move(p), 6));
  std::vector<Outcome> expected;
  for (const uint64_t seed : {0, 1, 2, 3}) {
    emu::reseed(seed);
    TinyEngine gpu(spec, weights, {});
    std::vector<Outcome> got = run_all(gpu, requests);
    if (expected.empty()) expected = std::move(got);
    else
      for (size_t i = 0; i < got.size(); i++) expect_same(got[i], expected[i], "in another order");
  }
  emu::reseed(0);
}

INSTANTIATE_TEST_SUITE_P(Formats, CudaSchedules, ::testing::ValuesIn(kCases), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace freetoken
