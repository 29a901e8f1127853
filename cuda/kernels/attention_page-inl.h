// Where elements lie in a page (attention.h), and their two types.
#pragma once
#include "cuda/kernels/attention.h"
#include "cuda/kernels/device.h"

namespace freetoken::cuda {

// f32_to_bf16: to nearest even; denormals become zero and NaN stays NaN, as on the CPU.
FT_DEV uint16_t kv_to_bf16(float x) {
  const uint32_t u = __float_as_uint(x), magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return uint16_t((u >> 16) | 0x40u);
  if (magnitude < 0x00800000u) return uint16_t((u >> 16) & 0x8000u);
  return uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// T: uint16_t for bf16, float for f32. A granule is 16 bytes.
template <class T>
constexpr int kGranule = int(16 / sizeof(T));

FT_DEV void unpack_granule(uint4 g, float (&v)[8]) {
  const uint32_t words[4] = {g.x, g.y, g.z, g.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    v[2 * i] = __uint_as_float(words[i] << 16);
    v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}
FT_DEV void unpack_granule(uint4 g, float (&v)[4]) {
  v[0] = __uint_as_float(g.x);
  v[1] = __uint_as_float(g.y);
  v[2] = __uint_as_float(g.z);
  v[3] = __uint_as_float(g.w);
}

FT_DEV void store_element(uint16_t* p, float x) { *p = kv_to_bf16(x); }
FT_DEV void store_element(float* p, float x) { *p = x; }

FT_DEV const int32_t* page_list(const StepView& step, const KvView& kv, int sequence) {
  return step.page_table + kv.group * step.group_stride + sequence * step.sequence_stride;
}

// The keys of one page and KV head; its values follow.
template <class T>
FT_DEV T* page_keys(const KvView& kv, int32_t page, int kv_head) {
  const int64_t head_elements = int64_t(kv.qk_dim + kv.v_dim) * kv.page_tokens;
  return reinterpret_cast<T*>(kv.pool + page * kv.page_bytes + kv.layer_offset) + kv_head * head_elements;
}
// Element d of the key at `place` within its page.
template <class T>
FT_DEV int64_t key_element(const KvView& kv, int place, int d) {
  return (int64_t(d / kGranule<T>) * kv.page_tokens + place) * kGranule<T> + d % kGranule<T>;
}
template <class T>
FT_DEV int64_t value_row(const KvView& kv, int place) {
  return int64_t(kv.qk_dim) * kv.page_tokens + int64_t(place) * kv.v_dim;
}

}  // namespace freetoken::cuda
