#pragma once
#include <cstddef>

namespace freetoken::emu {

// The limits of every device from sm_80 on: static arrays, and dynamic memory without and with cudaFuncSetAttribute.
constexpr size_t kStaticSharedBytes = 48 * 1024, kDynamicSharedBytes = 48 * 1024;

}  // namespace freetoken::emu
