#include "text/text_stream.h"

#include <utility>

namespace freetoken {

TextStream::TextStream(const Vocab& vocab, std::vector<std::string> stop, bool emit_special_tokens)
    : vocab_(&vocab), emit_special_tokens_(emit_special_tokens), matcher_(std::move(stop)) {}

bool TextStream::push(int32_t token, std::string* out) {
  if (stopped()) return true;
  if (token < 0 || size_t(token) >= vocab_->bytes.size()) return false;
  const uint8_t flags = size_t(token) < vocab_->flags.size() ? vocab_->flags[size_t(token)] : 0;
  if (flags & Vocab::kUnused) return false;
  if ((flags & Vocab::kSpecial) && !emit_special_tokens_) return false;
  text_.clear();
  characters_.push(vocab_->bytes[size_t(token)], &text_);
  return matcher_.push(text_, out);
}

bool TextStream::finish(std::string* out) {
  if (stopped()) return true;
  text_.clear();
  characters_.finish(&text_);
  if (matcher_.push(text_, out)) return true;
  matcher_.finish(out);
  return false;
}

}  // namespace freetoken
