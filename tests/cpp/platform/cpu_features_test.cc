#include "platform/cpu_features.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace freetoken {
namespace {

class SelectIsa : public testing::Test {
 protected:
  void TearDown() override { unsetenv("FREETOKEN_CPU_ISA"); }
};

TEST_F(SelectIsa, TakesTheBestSupportedLevel) {
  unsetenv("FREETOKEN_CPU_ISA");
  const auto level = select_isa_level();
  ASSERT_TRUE(level.ok());
  EXPECT_EQ(*level, supported_isa_levels().back());
  EXPECT_TRUE(isa_supported(*level));
}

TEST_F(SelectIsa, TakesTheForcedLevelAndNoOther) {
  for (int i = 0; i < kIsaLevels; i++) {
    setenv("FREETOKEN_CPU_ISA", isa_name(IsaLevel(i)), 1);
    const auto level = select_isa_level();
    if (isa_supported(IsaLevel(i))) {
      ASSERT_TRUE(level.ok());
      EXPECT_EQ(*level, IsaLevel(i));
    } else {
      ASSERT_FALSE(level.ok());
      EXPECT_EQ(level.status().code(), StatusCode::kUnsupported);
      EXPECT_NE(level.status().message().find(isa_name(IsaLevel(i))), std::string::npos);
    }
  }
}

TEST_F(SelectIsa, RefusesANameThatIsNoLevel) {
  setenv("FREETOKEN_CPU_ISA", "avx1024", 1);
  const auto level = select_isa_level();
  ASSERT_FALSE(level.ok());
  EXPECT_EQ(level.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(level.status().message().find("avx512bf16"), std::string::npos);
}

}  // namespace
}  // namespace freetoken
