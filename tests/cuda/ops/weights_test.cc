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
  // A slab has room for three of the first; where the third is a smaller one, what is left is too little for a fourth.
  constexpr int kVectors = 7, kLarge = int(cuda::WeightStore::kSlabBytes / 4 * 3 / 10), kSmall = kLarge / 6 * 5;
  std::vector<PackedTensorInfo> infos;
  int64_t bytes = 0;
  for (int i = 0; i < kVectors; i++) {
    infos.push_back({.name = "vector." + std::to_string(i), .vector = true, .n = i % 3 == 2 ? kSmall : kLarge, .k = 1});
    const auto data = ops.open(infos.back());
    ASSERT_TRUE(data.ok()) << data.status().message();
    std::fill_n(reinterpret_cast<float*>(*data), infos.back().n, float(i + 1));
    const Status committed = ops.commit(infos.back());
    ASSERT_TRUE(committed.ok()) << committed.message();
    bytes += int64_t(infos.back().bytes());
  }
  EXPECT_EQ(ops.weight_bytes(), bytes);
  for (int i = 0; i < kVectors; i++) {
    const PackedTensorInfo& info = infos[size_t(i)];
    Values got(size_t(info.n));
    device.run(1, [&](Queue& q) { ops.read(q, ops.vector(info.name), got); });
    EXPECT_EQ(std::count(got.begin(), got.end(), float(i + 1)), info.n) << info.name;
  }
}

}  // namespace
}  // namespace freetoken
