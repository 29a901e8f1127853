// Bytes to whole UTF-8 characters, incrementally.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace freetoken {

// Emits only whole, valid characters. A prefix that may still become a character is held back (at most 3 bytes); a maximal
// ill-formed part becomes one U+FFFD as soon as it is known to be one (the WHATWG decoder's rule, and Python's
// errors="replace"). O(1) per byte.
class Utf8Stream {
 public:
  void push(std::string_view bytes, std::string* out);
  // The end of the bytes: an incomplete character becomes one U+FFFD.
  void finish(std::string* out);

 private:
  char held_[4] = {};
  int held_bytes_ = 0;
  int needed_bytes_ = 0;                  // of the character in held_
  uint8_t lower_ = 0x80, upper_ = 0xBF;   // bounds of its next byte
};

// True when every byte of text belongs to a valid character.
bool is_valid_utf8(std::string_view text);

}  // namespace freetoken
