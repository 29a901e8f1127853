// The nvcc side of device.h, which includes it and says what each function does.
#pragma once

namespace freetoken::cuda {

FT_DEV uint4 load16(const void* p) { return *static_cast<const uint4*>(p); }
FT_DEV uint2 load8(const void* p) { return *static_cast<const uint2*>(p); }
FT_DEV uint32_t load4(const void* p) { return *static_cast<const uint32_t*>(p); }
FT_DEV float4 load16_float(const float* p) { return *reinterpret_cast<const float4*>(p); }
FT_DEV void store16(void* p, uint4 v) { *static_cast<uint4*>(p) = v; }
FT_DEV void store16(float* p, float4 v) { *reinterpret_cast<float4*>(p) = v; }
FT_DEV void store8(void* p, uint2 v) { *static_cast<uint2*>(p) = v; }
FT_DEV void store8(float* p, float2 v) { *reinterpret_cast<float2*>(p) = v; }
FT_DEV uint4 load16_stream(const void* p) {
  uint4 v;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(p));
  return v;
}
FT_DEV uint32_t load_acquire_system(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
FT_DEV void store_release_system(uint32_t* p, uint32_t v) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

FT_DEV uint32_t pack_bf16x2(float lo, float hi) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(hi), "f"(lo));
  return pair;
}
FT_DEV bf16 to_bf16(float v) { return bf16{uint16_t(pack_bf16x2(v, 0.0f))}; }
FT_DEV uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
FT_DEV float f16_to_float(uint16_t half) {
  float v;
  asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(half));
  return v;
}
FT_DEV float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

FT_DEV uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }
FT_DEV void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
FT_DEV void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
FT_DEV void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

FT_DEV void cp_async16(void* shared, const void* global, bool in_range = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(in_range ? 16 : 0)
               : "memory");
}
FT_DEV void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
FT_DEV void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

}  // namespace freetoken::cuda
