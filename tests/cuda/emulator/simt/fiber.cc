#include "simt/fiber.h"

#include <sys/mman.h>

#include <cstring>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(__x86_64__)
#error "the emulator switches fibers on x86-64 only"
#endif

extern "C" void freetoken_emu_switch(void** save, void* to);
// Callee-saved registers go on the stack; the rest is the compiler's, as in any call.
asm(R"(
.text
.globl freetoken_emu_switch
.hidden freetoken_emu_switch
.type freetoken_emu_switch,@function
freetoken_emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size freetoken_emu_switch,.-freetoken_emu_switch
)");

namespace freetoken::emu {
namespace {
constexpr size_t kGuardBytes = 4096;
}

void switch_to(void** save, Thread* to) {
  Block& block = *current_block;
#if defined(__SANITIZE_ADDRESS__)
  void* fake = nullptr;
  const bool last = current_thread && current_thread->done;
  __sanitizer_start_switch_fiber(last ? nullptr : &fake, to ? to->stack : block.asan_scheduler_stack,
                                 to ? kStackBytes : block.asan_scheduler_stack_bytes);
#endif
  block.switches++;
  current_thread = to;
  freetoken_emu_switch(save, to ? to->stack_pointer : block.scheduler_stack_pointer);
#if defined(__SANITIZE_ADDRESS__)
  const void* bottom;
  size_t bytes;
  __sanitizer_finish_switch_fiber(fake, &bottom, &bytes);
#endif
}

void fiber_entered() {
#if defined(__SANITIZE_ADDRESS__)
  Block& block = *current_block;
  const void* bottom;
  size_t bytes;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
  if (!block.asan_scheduler_stack) block.asan_scheduler_stack = bottom, block.asan_scheduler_stack_bytes = bytes;
#endif
}

void prepare_fiber(Thread& thread, void (*entry)()) {
  // Six registers, the entry as return address, and a zero where entry's own return address would be; the alignment is
  // the one a called function expects.
  void** top = reinterpret_cast<void**>(thread.stack + kStackBytes - 64);
  top[-1] = nullptr;
  top[-2] = reinterpret_cast<void*>(entry);
  thread.stack_pointer = top - 8;
  std::memset(thread.stack_pointer, 0, 6 * sizeof(void*));
}

char* map_stacks(uint32_t threads) {
  void* map =
      mmap(nullptr, threads * kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) die("no address space for the stacks of %u threads", threads);
  auto* stacks = static_cast<char*>(map);
  for (uint32_t i = 0; i < threads; i++) mprotect(stacks + i * kStackBytes, kGuardBytes, PROT_NONE);
  return stacks;
}

void unmap_stacks(char* stacks, uint32_t threads) {
  if (stacks) munmap(stacks, threads * kStackBytes);
}

}  // namespace freetoken::emu
