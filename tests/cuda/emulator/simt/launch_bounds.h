// __launch_bounds__(n) puts four nops per warp of n before the kernel's entry (cuda_runtime.h): n comes back from
// there.
#pragma once

namespace freetoken::emu {

// The most threads a block of this kernel may have; 0 where it has no bounds.
inline unsigned launch_bound(const void* entry) {
  constexpr unsigned char kNop = 0x90;
  const auto* code = static_cast<const unsigned char*>(entry);
  unsigned nops = 0;
  while (nops < 4 * 32 + 3 && code[-1 - int(nops)] == kNop) nops++;
  return nops / 4 * 32;  // up to three more can be padding of the compiler
}

}  // namespace freetoken::emu
