// TextStream: the token ids of one request to the text it shows.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "freetoken/vocab.h"
#include "text/stop_matcher.h"
#include "text/utf8_stream.h"

namespace freetoken {

// ids -> Vocab bytes -> whole UTF-8 characters -> text before a stop string. Any split of the same bytes over tokens gives
// the same text. Not thread-safe; one per sampled sequence.
class TextStream {
 public:
  // vocab outlives the stream. stop has passed validate_stop_strings. Control tokens (Vocab::kSpecial) add text only with
  // emit_special_tokens; ids outside the vocabulary and Vocab::kUnused ids add none.
  TextStream(const Vocab& vocab, std::vector<std::string> stop, bool emit_special_tokens);

  // Appends the text released by this token to *out (possibly none). Returns true when a stop string is complete: the
  // request ends, and later calls add nothing.
  bool push(int32_t token, std::string* out);

  // The end of generation for another reason (EOS, limit, cancellation): releases what was held back. Returns true when the
  // U+FFFD of an incomplete character completed a stop string.
  bool finish(std::string* out);

  bool stopped() const { return matcher_.stopped(); }
  const std::string& stop_match() const { return matcher_.match(); }

 private:
  const Vocab* vocab_;
  bool emit_special_tokens_;
  Utf8Stream characters_;
  StopMatcher matcher_;
  std::string text_;  // scratch: characters on their way to the matcher
};

}  // namespace freetoken
