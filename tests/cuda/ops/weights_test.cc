// Where CudaOps puts weights: more of them than one slab holds.
#include <gtest/gtest.h>

#include <algorithm>

#include "cuda/ops/weight_store.h"
#include "cuda_device.h"
#include "ops/ops_case.h"

namespace freetoken {
namespace {

using namespace freetoken::testing;

TEST(CudaWeights, WhatFillsSlabsStaysApart) {
  OpsCase device({.kind = DeviceKind::kOther}, spec_with(64, make_mlp(32, {})), 1);
  Ops& ops = *device.ops;
  constexpr int kVectors = 7, kValues = int(cuda::WeightStore::kSlabBytes / 4 / 10 * 3);  // three in a slab, and a tenth left
  auto info = [&](int i) {
    return PackedTensorInfo{.name = "vector." + std::to_string(i), .vector = true, .format = WeightFormat::kF32, .n = kValues, .k = 1};
  };
  for (int i = 0; i < kVectors; i++) {
    const auto data = ops.open(info(i));
    ASSERT_TRUE(data.ok()) << data.status().message();
    std::fill_n(reinterpret_cast<float*>(*data), kValues, float(i + 1));
    const Status committed = ops.commit(info(i));
    ASSERT_TRUE(committed.ok()) << committed.message();
  }
  EXPECT_EQ(ops.weight_bytes(), int64_t(kVectors) * kValues * 4);
  for (int i = 0; i < kVectors; i++) {
    Values got(kValues);
    device.run(1, [&](Queue& q) { ops.read(q, ops.vector(info(i).name), got); });
    EXPECT_EQ(std::count(got.begin(), got.end(), float(i + 1)), kValues) << info(i).name;
  }
}

}  // namespace
}  // namespace freetoken
