// ResidentExperts: every expert of every layer is where it was registered, asked from any thread.
#include "moe/resident_experts.h"

#include <gtest/gtest.h>

#include <thread>

namespace freetoken {
namespace {

TEST(ResidentExperts, AnswersWithTheRegisteredAddress) {
  ResidentExperts resident;
  std::vector<std::vector<uint64_t>> layers;
  for (int l = 0; l < 5; l++) {
    std::vector<uint64_t> addresses;
    for (int e = 0; e < 3 + l; e++) addresses.push_back(uint64_t(1000 * (l + 1) + e));
    layers.push_back(addresses);
    ASSERT_EQ(resident.add_layer(addresses), l);
  }
  auto ask = [&] {
    for (int l = 0; l < 5; l++) {
      const std::vector<int32_t> wanted = {0, 2};
      resident.post(l, wanted);
      for (int e = 0; e < 3 + l; e++) {
        const ExpertAnswer answer = resident.wait(l, e);
        EXPECT_EQ(answer.kind, ExpertAnswer::Kind::kAddress);
        EXPECT_EQ(answer.address, layers[size_t(l)][size_t(e)]);
        EXPECT_TRUE(answer.error.ok());
      }
      resident.release(l);
    }
  };
  std::thread other(ask);
  ask();
  other.join();
}

}  // namespace
}  // namespace freetoken
