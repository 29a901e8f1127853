// Reads the JSON form of a ModelSpec strictly, over the descriptions of describe_*.cc.
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>

#include "spec/describe.h"

namespace freetoken {
namespace {

using nlohmann::json;
using spec::Need;

constexpr size_t kMaxJsonBytes = size_t{256} << 20;

std::string shown(double value) {
  char text[32];
  auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return std::string(text, end);
}

// Reads the object on top of a stack; keeps the first error and does nothing after it.
class Reader final : public spec::Fields {
 public:
  explicit Reader(const json& root) : at_(&root) {}

  const Status& status() const { return status_; }

  void run(const std::function<void()>& body) { inside(at_, "", body); }

  void integer(const char* name, int& value, int, int low, int high, Need need) override {
    const json* found = find(name, need);
    if (found != nullptr) value = read_integer(*found, name, low, high);
  }

  void real(const char* name, float& value, float, double low, double high, Need need) override {
    const json* found = find(name, need);
    if (found != nullptr) value = read_real(*found, name, low, high);
  }

  void flag(const char* name, bool& value, bool) override {
    const json* found = find(name, Need::kOptional);
    if (found == nullptr) return;
    if (!found->is_boolean()) return fail(name, std::string("expected true or false, found ") + found->type_name());
    value = found->get<bool>();
  }

  void choice(const char* name, int& value, int, std::span<const char* const> names, Need need) override {
    const json* found = find(name, need);
    if (found == nullptr) return;
    if (!found->is_string()) return fail(name, std::string("expected a name, found ") + found->type_name());
    const std::string& text = found->get_ref<const std::string&>();
    std::string known;
    for (size_t i = 0; i < names.size(); ++i) {
      if (text == names[i]) {
        value = static_cast<int>(i);
        return;
      }
      if (i > 0) known += ", ";
      known += names[i];
    }
    fail(name, std::string("'").append(text, 0, 64) + "' is not one of " + known);
  }

  void reals(const char* name, std::vector<float>& values, double low, double high, size_t max_size,
             Need need) override {
    const json* found = find_array(name, need, 0, max_size);
    if (found == nullptr) return;
    values.clear();
    for (size_t i = 0; i < found->size() && status_.ok(); ++i) {
      values.push_back(read_real((*found)[i], element(name, i), low, high));
    }
  }

  void object(const char* name, const std::function<void()>& body, Need need) override {
    const json* found = find(name, need);
    if (found != nullptr) inside(found, name, body);
  }

  void list(const char* name, size_t, size_t min_size, size_t max_size, const std::function<void(size_t)>& resize,
            const std::function<void(size_t)>& body) override {
    const json* found = find_array(name, min_size > 0 ? Need::kRequired : Need::kOptional, min_size, max_size);
    if (found == nullptr) return;
    resize(found->size());
    for (size_t i = 0; i < found->size() && status_.ok(); ++i) {
      inside(&(*found)[i], element(name, i), [&] { body(i); });
    }
  }

 private:
  static std::string element(const char* name, size_t i) { return std::string(name) + "[" + std::to_string(i) + "]"; }

  std::string joined(const std::string& name) const {
    std::string path = path_;
    if (!path.empty() && !name.empty()) path += '.';
    path += name;
    return path;
  }

  void fail(const std::string& name, const std::string& what) {
    if (!status_.ok()) return;
    const std::string path = joined(name);
    status_ = InvalidArgument("model spec: " + (path.empty() ? std::string("top level") : path) + ": " + what);
  }

  const json* find(const char* name, Need need) {
    if (!status_.ok()) return nullptr;
    known_.insert(name);
    const auto it = at_->find(name);
    if (it != at_->end()) return &*it;
    if (need == Need::kRequired) fail(name, "missing");
    return nullptr;
  }

  const json* find_array(const char* name, Need need, size_t min_size, size_t max_size) {
    const json* found = find(name, need);
    if (found == nullptr) return nullptr;
    if (!found->is_array()) {
      fail(name, std::string("expected a list, found ") + found->type_name());
    } else if (found->size() < min_size || found->size() > max_size) {
      fail(name, std::to_string(found->size()) + " elements, allowed are " + std::to_string(min_size) + " to " +
                     std::to_string(max_size));
    }
    return status_.ok() ? found : nullptr;
  }

  int read_integer(const json& j, const std::string& name, int low, int high) {
    if (!j.is_number_integer()) {
      fail(name, std::string("expected an integer, found ") + (j.is_number() ? j.dump() : j.type_name()));
      return low;
    }
    const bool in_range = j.is_number_unsigned() ? high >= 0 && j.get<uint64_t>() <= static_cast<uint64_t>(high) &&
                                                       (low <= 0 || j.get<uint64_t>() >= static_cast<uint64_t>(low))
                                                 : j.get<int64_t>() >= low && j.get<int64_t>() <= high;
    if (!in_range) {
      fail(name, j.dump() + " is outside " + std::to_string(low) + " to " + std::to_string(high));
      return low;
    }
    return j.get<int>();
  }

  float read_real(const json& j, const std::string& name, double low, double high) {
    if (!j.is_number()) {
      fail(name, std::string("expected a number, found ") + j.type_name());
      return 0.0f;
    }
    const double value = j.get<double>();
    if (!(value >= low && value <= high)) {
      fail(name, j.dump() + " is outside " + shown(low) + " to " + shown(high));
      return 0.0f;
    }
    return static_cast<float>(value);
  }

  void inside(const json* object, const std::string& name, const std::function<void()>& body) {
    if (!object->is_object()) return fail(name, std::string("expected an object, found ") + object->type_name());
    const json* outer_at = at_;
    const std::string outer_path = path_;
    std::set<std::string> outer_known;
    outer_known.swap(known_);
    at_ = object;
    path_ = joined(name);
    body();
    for (auto it = object->begin(); it != object->end() && status_.ok(); ++it) {
      if (known_.count(it.key()) == 0) fail(it.key().substr(0, 64), "unknown field");
    }
    at_ = outer_at;
    path_ = outer_path;
    known_.swap(outer_known);
  }

  const json* at_;
  std::string path_;
  std::set<std::string> known_;
  Status status_;
};

}  // namespace

Result<ModelSpec> parse_model_spec(const std::string& text) {
  if (text.size() > kMaxJsonBytes) {
    return InvalidArgument("model spec: " + std::to_string(text.size()) + " bytes of JSON, at most " +
                           std::to_string(kMaxJsonBytes) + " are read");
  }
  const json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded()) return InvalidArgument("model spec: not valid JSON");
  ModelSpec model;
  Reader reader(root);
  reader.run([&] { spec::describe(reader, model); });
  if (!reader.status().ok()) return reader.status();
  if (Status status = spec::check(model); !status.ok()) return InvalidArgument("model spec: " + status.message());
  return model;
}

}  // namespace freetoken
