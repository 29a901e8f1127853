// Declares the table that each ISA level's objects define and picks one at run time.
#pragma once
#include "platform/cpu_features.h"

#define FT_DECLARE_LEVEL(level, Type, name) \
  namespace level {                         \
  extern const Type name;                   \
  }
// Expands, in namespace freetoken, to a function `pick(IsaLevel)` returning the level's `name`.
#define FT_ISA_TABLE(Type, name, pick)                                        \
  FT_DECLARE_LEVEL(scalar, Type, name)                                        \
  FT_DECLARE_LEVEL(avx2, Type, name)                                          \
  FT_DECLARE_LEVEL(avx2vnni, Type, name)                                      \
  FT_DECLARE_LEVEL(avx512, Type, name)                                        \
  FT_DECLARE_LEVEL(avx512vnni, Type, name)                                    \
  FT_DECLARE_LEVEL(avx512bf16, Type, name)                                    \
  const Type& pick(IsaLevel isa) {                                            \
    static const Type* const kTables[kIsaLevels] = {&scalar::name, &avx2::name, &avx2vnni::name,       \
                                                    &avx512::name, &avx512vnni::name, &avx512bf16::name}; \
    return *kTables[int(isa)];                                                \
  }
