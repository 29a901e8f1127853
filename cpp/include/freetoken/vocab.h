// Vocab: what the core needs of a tokenizer to turn ids into text.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace freetoken {

struct Vocab {
  // Flags of one id.
  static constexpr uint8_t kSpecial = 1;  // control token: adds no text unless the request asks for it
  static constexpr uint8_t kUnused = 2;   // has no text and is never sampled (padding rows of the output matrix)

  std::vector<std::string> bytes;  // id -> the bytes it adds to the text (may be part of a UTF-8 character)
  std::vector<uint8_t> flags;      // same length
};

}  // namespace freetoken
