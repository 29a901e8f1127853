// What code compiled with -fsanitize=thread calls at every access. This library is linked in place of libtsan.
#include "emulator/block.h"

using freetoken::emu::Access;
using freetoken::emu::note_access;

#define FT_EMU_PC __builtin_return_address(0)
#define FT_EMU_PLAIN(n)                                                                            \
  void __tsan_read##n(void* p) { note_access(p, n, Access::kRead, FT_EMU_PC); }                    \
  void __tsan_write##n(void* p) { note_access(p, n, Access::kWrite, FT_EMU_PC); }                  \
  void __tsan_unaligned_read##n(void* p) { note_access(p, n, Access::kRead, FT_EMU_PC); }          \
  void __tsan_unaligned_write##n(void* p) { note_access(p, n, Access::kWrite, FT_EMU_PC); }        \
  void __tsan_volatile_read##n(void* p) { note_access(p, n, Access::kRead, FT_EMU_PC); }           \
  void __tsan_volatile_write##n(void* p) { note_access(p, n, Access::kWrite, FT_EMU_PC); }         \
  void __tsan_unaligned_volatile_read##n(void* p) { note_access(p, n, Access::kRead, FT_EMU_PC); } \
  void __tsan_unaligned_volatile_write##n(void* p) { note_access(p, n, Access::kWrite, FT_EMU_PC); }

#define FT_EMU_ATOMIC(bits, type)                                                                               \
  type __tsan_atomic##bits##_load(const volatile type* p, int) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); } \
  void __tsan_atomic##bits##_store(volatile type* p, type v, int) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); } \
  type __tsan_atomic##bits##_exchange(volatile type* p, type v, int) {                                          \
    return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                                         \
  }                                                                                                             \
  type __tsan_atomic##bits##_fetch_add(volatile type* p, type v, int) {                                         \
    return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);                                                          \
  }                                                                                                             \
  type __tsan_atomic##bits##_fetch_sub(volatile type* p, type v, int) {                                         \
    return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST);                                                          \
  }                                                                                                             \
  type __tsan_atomic##bits##_fetch_and(volatile type* p, type v, int) {                                         \
    return __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST);                                                          \
  }                                                                                                             \
  type __tsan_atomic##bits##_fetch_or(volatile type* p, type v, int) {                                          \
    return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST);                                                           \
  }                                                                                                             \
  type __tsan_atomic##bits##_fetch_xor(volatile type* p, type v, int) {                                         \
    return __atomic_fetch_xor(p, v, __ATOMIC_SEQ_CST);                                                          \
  }                                                                                                             \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile type* p, type* c, type v, int, int) {              \
    return __atomic_compare_exchange_n(p, c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                     \
  }                                                                                                             \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile type* p, type* c, type v, int, int) {                \
    return __atomic_compare_exchange_n(p, c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                     \
  }                                                                                                             \
  type __tsan_atomic##bits##_compare_exchange_val(volatile type* p, type c, type v, int, int) {                 \
    __atomic_compare_exchange_n(p, &c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                           \
    return c;                                                                                                   \
  }

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* p, unsigned long n) { note_access(p, n, Access::kRead, FT_EMU_PC); }
void __tsan_write_range(void* p, unsigned long n) { note_access(p, n, Access::kWrite, FT_EMU_PC); }
FT_EMU_PLAIN(1)
FT_EMU_PLAIN(2)
FT_EMU_PLAIN(4)
FT_EMU_PLAIN(8)
FT_EMU_PLAIN(16)
FT_EMU_ATOMIC(8, unsigned char)
FT_EMU_ATOMIC(16, unsigned short)
FT_EMU_ATOMIC(32, unsigned)
FT_EMU_ATOMIC(64, unsigned long)
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) {}
}
