// CudaOps in the emulator, as the device under test.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "cuda/ops/cuda_ops.h"

namespace freetoken::testing {

inline std::unique_ptr<cuda::CudaOps> make_cuda(std::vector<uint8_t> usable, int expert_slots = 0) {
  auto ops = cuda::CudaOps::create({.usable_tokens = std::move(usable), .expert_slots = expert_slots}, {});
  EXPECT_TRUE(ops.ok()) << ops.status().message();
  return ops.ok() ? std::move(*ops) : nullptr;
}

}  // namespace freetoken::testing
