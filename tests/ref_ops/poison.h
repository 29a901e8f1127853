// The pattern that fills what holds no value: read as fp32 or as bf16 it is a signalling NaN, so arithmetic on it shows, and
// a bit pattern that no arithmetic gives, so a copy of it shows too.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace freetoken::ref {

constexpr uint16_t kPoisonHalf = 0x7fa5;
constexpr uint32_t kPoisonWord = 0x7fa57fa5;

// bytes: a multiple of 2; both aligned to 2.
inline void fill_poison(void* to, size_t bytes) {
  uint8_t* p = static_cast<uint8_t*>(to);
  for (size_t i = 0; i + 4 <= bytes; i += 4) std::memcpy(p + i, &kPoisonWord, 4);
  if (bytes % 4) std::memcpy(p + bytes - 2, &kPoisonHalf, 2);
}

// Index of the first word that is (wanted) or is not poison; count when there is none.
inline size_t find_poison(const void* from, size_t count, bool wanted) {
  const uint8_t* p = static_cast<const uint8_t*>(from);
  for (size_t i = 0; i < count; i++) {
    uint32_t word;
    std::memcpy(&word, p + 4 * i, 4);
    if ((word == kPoisonWord) == wanted) return i;
  }
  return count;
}

}  // namespace freetoken::ref
