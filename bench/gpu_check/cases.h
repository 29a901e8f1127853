// What is timed: the kernels at the sizes of Qwen3-30B-A3B (hidden 2048, 128 experts of 768, 8 of them for a token, 32 query
// and 4 KV heads of 128, vocabulary 151936), decode and prefill.
#pragma once
#include <functional>
#include <vector>

#include "gpu_check/timing.h"

namespace freetoken::gpu_check {

using Take = std::function<void(const TimedCase&)>;

// Each makes its operands, hands over one case after another, and frees them.
void copy_cases(const Take& take);
void linear_cases(const Take& take);
void expert_cases(const Take& take);
void attention_cases(const Take& take);
void row_cases(const Take& take);

}  // namespace freetoken::gpu_check
