// Plain batch versions of what cpp/text does incrementally.
#pragma once
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace freetoken::test {

struct Range {
  uint8_t low, high;
};

// Table 3-7 of the Unicode standard: well-formed UTF-8 byte sequences.
inline const std::vector<std::vector<Range>>& utf8_forms() {
  static const std::vector<std::vector<Range>> forms = {
      {{0x00, 0x7F}},
      {{0xC2, 0xDF}, {0x80, 0xBF}},
      {{0xE0, 0xE0}, {0xA0, 0xBF}, {0x80, 0xBF}},
      {{0xE1, 0xEC}, {0x80, 0xBF}, {0x80, 0xBF}},
      {{0xED, 0xED}, {0x80, 0x9F}, {0x80, 0xBF}},
      {{0xEE, 0xEF}, {0x80, 0xBF}, {0x80, 0xBF}},
      {{0xF0, 0xF0}, {0x90, 0xBF}, {0x80, 0xBF}, {0x80, 0xBF}},
      {{0xF1, 0xF3}, {0x80, 0xBF}, {0x80, 0xBF}, {0x80, 0xBF}},
      {{0xF4, 0xF4}, {0x80, 0x8F}, {0x80, 0xBF}, {0x80, 0xBF}},
  };
  return forms;
}

// The longest prefix of bytes[at..] that begins some form; *complete tells whether it is a whole one.
inline size_t longest_part(const std::string& bytes, size_t at, bool* complete) {
  size_t best = 0;
  *complete = false;
  for (const auto& form : utf8_forms()) {
    size_t n = 0;
    while (n < form.size() && at + n < bytes.size() && uint8_t(bytes[at + n]) >= form[n].low &&
           uint8_t(bytes[at + n]) <= form[n].high)
      n++;
    if (n > best) best = n, *complete = n == form.size();
  }
  return best;
}

inline std::string decode_replace(const std::string& bytes) {
  std::string out;
  for (size_t at = 0; at < bytes.size();) {
    bool complete = false;
    const size_t n = longest_part(bytes, at, &complete);
    out += complete ? bytes.substr(at, n) : "\uFFFD";
    at += n == 0 ? 1 : n;
  }
  return out;
}

struct Stopped {
  std::string text, match;
};

// The stop string whose end comes first; among those with that end the longest.
inline Stopped apply_stop(const std::string& text, const std::vector<std::string>& stop) {
  for (size_t end = 1; end <= text.size(); end++) {
    const std::string* best = nullptr;
    for (const auto& s : stop)
      if (s.size() <= end && text.compare(end - s.size(), s.size(), s) == 0 && (!best || s.size() > best->size())) best = &s;
    if (best) return {text.substr(0, end - best->size()), *best};
  }
  return {text, ""};
}

inline std::vector<std::string> random_split(const std::string& bytes, std::mt19937& random) {
  std::vector<std::string> pieces;
  for (size_t at = 0; at < bytes.size();) {
    const size_t n = random() % 5;  // empty pieces too
    pieces.push_back(bytes.substr(at, n));
    at += n;
  }
  return pieces;
}

}  // namespace freetoken::test
