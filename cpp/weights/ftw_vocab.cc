#include <cstring>

#include "weights/ftw_manifest.h"

namespace freetoken {

std::string ftw_vocab_bytes(const Vocab& vocab) {
  std::string out;
  auto put = [&](uint32_t value) { out.append(reinterpret_cast<const char*>(&value), 4); };
  put(uint32_t(vocab.bytes.size()));
  for (size_t i = 0; i < vocab.bytes.size(); i++) {
    out.push_back(char(vocab.flags[i]));
    put(uint32_t(vocab.bytes[i].size()));
    out += vocab.bytes[i];
  }
  return out;
}

Result<Vocab> parse_ftw_vocab(const std::string& bytes, const std::string& where) {
  const Status damaged = InvalidArgument(where + ": damaged: its length does not fit what it says of itself");
  size_t at = 0;
  auto get = [&](uint32_t* value) {
    if (bytes.size() - at < 4) return false;
    std::memcpy(value, bytes.data() + at, 4);
    at += 4;
    return true;
  };
  uint32_t count = 0;
  if (!get(&count) || count > bytes.size() / 5) return damaged;
  Vocab vocab;
  vocab.bytes.reserve(count);
  vocab.flags.reserve(count);
  for (uint32_t i = 0; i < count; i++) {
    if (at >= bytes.size()) return damaged;
    vocab.flags.push_back(uint8_t(bytes[at++]));
    uint32_t length = 0;
    if (!get(&length) || length > bytes.size() - at) return damaged;
    vocab.bytes.push_back(bytes.substr(at, length));
    at += length;
  }
  if (at != bytes.size()) return damaged;
  return vocab;
}

}  // namespace freetoken
