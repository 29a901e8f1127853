#include "text/utf8_stream.h"

namespace freetoken {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

void Utf8Stream::push(std::string_view bytes, std::string* out) {
  for (const char c : bytes) {
    const uint8_t byte = uint8_t(c);
    if (held_bytes_ > 0) {
      if (byte >= lower_ && byte <= upper_) {
        held_[held_bytes_++] = c;
        lower_ = 0x80, upper_ = 0xBF;
        if (held_bytes_ == needed_bytes_) {
          out->append(held_, size_t(held_bytes_));
          held_bytes_ = 0;
        }
        continue;
      }
      finish(out);  // the byte begins anew
    }
    if (byte < 0x80) {
      out->push_back(c);
      continue;
    }
    if (byte < 0xC2 || byte > 0xF4) {
      out->append(kReplacement);
      continue;
    }
    needed_bytes_ = byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    // Second bytes that would make an overlong form, a surrogate or a number above U+10FFFF are excluded.
    lower_ = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
    upper_ = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
    held_[0] = c;
    held_bytes_ = 1;
  }
}

void Utf8Stream::finish(std::string* out) {
  if (held_bytes_ > 0) out->append(kReplacement);
  held_bytes_ = 0;
  lower_ = 0x80, upper_ = 0xBF;
}

bool is_valid_utf8(std::string_view text) {
  Utf8Stream stream;
  std::string out;
  out.reserve(text.size() + 4);
  stream.push(text, &out);
  stream.finish(&out);
  return out == text;
}

}  // namespace freetoken
