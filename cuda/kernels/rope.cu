#include "cuda/kernels/rope.h"

#include "cuda/kernels/attention_page-inl.h"
#include "cuda/kernels/rows_math-inl.h"

namespace freetoken::cuda {
namespace {

constexpr int kAngleThreads = 64;
constexpr int kHeadWarps = 4;

__global__ void __launch_bounds__(kAngleThreads) rope_angles(StepView step, RopeView rope, float* angles) {
  const int i = int(blockIdx.x) * kAngleThreads + int(threadIdx.x), r = int(blockIdx.y);
  if (i >= rope.half) return;
  const double angle = double(__fmul_rn(float(step.row_position[r]), rope.inv_freq[i]));
  float* row = angles + int64_t(r) * 2 * rope.half;
  row[i] = float(cos(angle)) * rope.attention_factor;
  row[rope.half + i] = float(sin(angle)) * rope.attention_factor;
}

// One head in the hands of a warp: from[0..dim) normed, rotated and handed to put(element, value). A lane reads the two
// elements of a pair before it puts them, so `put` may write where `from` lies.
template <class Put>
FT_DEV void prepare_head(const float* from, int dim, const HeadNorm& norm, const RopeView& rope, const float* angles,
                         const Put& put) {
  const int lane = int(threadIdx.x) % 32;
  float inverse = 1.0f;
  if (norm.rms) {
    float squares = 0.0f;
    for (int d = lane; d < dim; d += 32) squares = fmaf(from[d], from[d], squares);
    inverse = 1.0f / sqrtf(warp_sum(squares) / float(dim) + norm.eps);
    __syncwarp();  // all lanes have read before the first one puts
  }
  const auto normed = [&](int d) {
    if (!norm.rms) return from[d];
    const float v = __fmul_rn(from[d], inverse);
    return norm.weight ? __fmul_rn(v, norm.weight[d] + (norm.plus_one ? 1.0f : 0.0f)) : v;
  };
  const int half = angles ? rope.half : 0, begin = rope.offset;
  for (int i = lane; i < half; i += 32) {
    const int first = begin + (rope.interleaved ? 2 * i : i), second = rope.interleaved ? first + 1 : first + half;
    const float a = normed(first), b = normed(second), c = angles[i], s = angles[half + i];
    put(first, fmaf(a, c, -__fmul_rn(b, s)));
    put(second, fmaf(b, c, __fmul_rn(a, s)));
  }
  for (int d = lane; d < dim; d += 32) {
    if (d >= begin && d < begin + 2 * half) continue;
    put(d, normed(d));
  }
}

// Row blockIdx.y; warps take the heads of q, then of k, then of v.
template <class T>
__global__ void __launch_bounds__(32 * kHeadWarps) prepare_heads(StepView step, KvView kv, PrepareArgs args) {
  const int head = int(blockIdx.x) * kHeadWarps + int(threadIdx.x) / 32, r = int(blockIdx.y), lane = int(threadIdx.x) % 32;
  const float* angles = args.angles ? args.angles + int64_t(r) * 2 * args.rope.half : nullptr;
  if (head < args.q_heads) {
    float* q = args.q + r * args.q_stride + head * kv.qk_dim;
    prepare_head(q, kv.qk_dim, args.q_norm, args.rope, angles, [&](int d, float v) { q[d] = v; });
    return;
  }
  const int kv_head = (head - args.q_heads) % kv.kv_heads;
  if (head >= args.q_heads + 2 * kv.kv_heads) return;
  const int position = step.row_position[r], place = position % kv.page_tokens;
  const int32_t page = page_list(step, kv, step.row_sequence[r])[position / kv.page_tokens];
  T* keys = page_keys<T>(kv, page, kv_head);
  if (head < args.q_heads + kv.kv_heads) {
    prepare_head(args.k + r * args.k_stride + kv_head * kv.qk_dim, kv.qk_dim, args.k_norm, args.rope, angles,
                 [&](int d, float v) { store_element(keys + key_element<T>(kv, place, d), v); });
    return;
  }
  const float* v = args.v + r * args.v_stride + kv_head * kv.v_dim;
  for (int d = lane; d < kv.v_dim; d += 32) store_element(keys + value_row<T>(kv, place) + d, v[d]);
}

}  // namespace

cudaError_t launch_rope_angles(const StepView& step, int rows, const RopeView& rope, float* angles, cudaStream_t stream) {
  if (rows == 0 || rope.half == 0) return cudaSuccess;
  const dim3 grid(unsigned((rope.half + kAngleThreads - 1) / kAngleThreads), unsigned(rows));
  FT_LAUNCH((rope_angles), grid, dim3(kAngleThreads), 0, stream, step, rope, angles);
  return cudaGetLastError();
}

cudaError_t launch_prepare_heads(const StepView& step, int rows, const KvView& kv, const PrepareArgs& args,
                                 cudaStream_t stream) {
  if (args.angles && args.rope.offset + 2 * args.rope.half > kv.qk_dim) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  const int heads = args.q_heads + 2 * kv.kv_heads;
  const dim3 grid(unsigned((heads + kHeadWarps - 1) / kHeadWarps), unsigned(rows)), block(32 * kHeadWarps);
  if (kv.f32)
    FT_LAUNCH((prepare_heads<float>), grid, block, 0, stream, step, kv, args);
  else
    FT_LAUNCH((prepare_heads<uint16_t>), grid, block, 0, stream, step, kv, args);
  return cudaGetLastError();
}

}  // namespace freetoken::cuda
