// Writes the canonical JSON form of a ModelSpec: keys in order, defaults left out, a float with the fewest digits that give the
// same float back, laid out as Python's json does. Two equal specs have equal text, whichever language wrote it.
#include <charconv>
#include <map>

#include "spec/describe.h"

namespace freetoken {
namespace {

using spec::Need;

std::string text_of(float value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string shown(buffer, end);  // d[.ddd]e+xx
  const size_t sign = shown[0] == '-' ? 1 : 0, e = shown.find('e');
  std::string digits = shown.substr(sign, 1);
  if (e > sign + 2) digits += shown.substr(sign + 2, e - sign - 2);
  int exponent = 0;
  const char* from = shown.data() + e + (shown[e + 1] == '+' ? 2 : 1);
  std::from_chars(from, shown.data() + shown.size(), exponent);
  std::string out = shown.substr(0, sign);
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) return shown;
  if (exponent < 0) return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (exponent >= count - 1) return out + digits + std::string(static_cast<size_t>(exponent - count + 1), '0') + ".0";
  return out + digits.substr(0, static_cast<size_t>(exponent) + 1) + "." + digits.substr(static_cast<size_t>(exponent) + 1);
}

class Writer final : public spec::Fields {
 public:
  // The object written so far.
  std::string take() {
    std::string out = "{";
    for (const auto& [name, text] : members_) {
      if (out.size() > 1) out += ',';
      out.append("\"").append(name).append("\":").append(text);
    }
    members_.clear();
    return out + "}";
  }

  void integer(const char* name, int& value, int fallback, int, int, Need need) override {
    if (need == Need::kRequired || value != fallback) members_[name] = std::to_string(value);
  }
  void real(const char* name, float& value, float fallback, double, double, Need need) override {
    if (need == Need::kRequired || value != fallback) members_[name] = text_of(value);
  }
  void flag(const char* name, bool& value, bool fallback) override {
    if (value != fallback) members_[name] = value ? "true" : "false";
  }
  void choice(const char* name, int& value, int fallback, std::span<const char* const> names, Need need) override {
    if (need == Need::kOptional && value == fallback) return;
    members_[name] = std::string("\"").append(names[static_cast<size_t>(value)]).append("\"");
  }
  void reals(const char* name, std::vector<float>& values, double, double, size_t, Need need) override {
    if (need == Need::kOptional && values.empty()) return;
    std::vector<std::string> texts;
    for (float value : values) texts.push_back(text_of(value));
    members_[name] = array(texts);
  }
  void object(const char* name, const std::function<void()>& body, Need need) override {
    std::string inner = nested(body);
    if (need == Need::kRequired || inner != "{}") members_[name] = std::move(inner);
  }
  void list(const char* name, size_t size, size_t, size_t, const std::function<void(size_t)>&,
            const std::function<void(size_t)>& body) override {
    std::vector<std::string> texts;
    for (size_t i = 0; i < size; ++i) texts.push_back(nested([&] { body(i); }));
    if (size > 0) members_[name] = array(texts);
  }

 private:
  static std::string array(const std::vector<std::string>& texts) {
    std::string out = "[";
    for (size_t i = 0; i < texts.size(); ++i) {
      if (i > 0) out += ',';
      out += texts[i];
    }
    return out + "]";
  }

  std::string nested(const std::function<void()>& body) {
    std::map<std::string, std::string> outer;
    outer.swap(members_);
    body();
    std::string inner = take();
    outer.swap(members_);
    return inner;
  }

  std::map<std::string, std::string> members_;
};

}  // namespace

std::string model_spec_to_json(const ModelSpec& model) {
  ModelSpec copy = model;  // describe() takes what it describes by reference, for the reader's sake
  Writer writer;
  spec::describe(writer, copy);
  return writer.take();
}

}  // namespace freetoken
