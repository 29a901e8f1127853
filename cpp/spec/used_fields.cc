#include "spec/describe.h"

namespace freetoken {
namespace {

using spec::Need;

// Collects what differs from the defaults; sublayers and layers add no prefix, so that a field has one name.
class Collector final : public spec::Fields {
 public:
  std::set<std::string> take() { return std::move(names_); }

  void integer(const char* name, int& value, int fallback, int, int, Need need) override {
    if (need == Need::kOptional && value != fallback) add(name);
  }
  void real(const char* name, float& value, float fallback, double, double, Need need) override {
    if (need == Need::kOptional && value != fallback) add(name);
  }
  void flag(const char* name, bool& value, bool fallback) override {
    if (value != fallback) add(name);
  }
  void choice(const char* name, int& value, int fallback, std::span<const char* const> names, Need need) override {
    if (need == Need::kRequired || value != fallback) add(std::string(name) + "=" + names[static_cast<size_t>(value)]);
  }
  void reals(const char* name, std::vector<float>& values, double, double, size_t, Need need) override {
    if (need == Need::kOptional && !values.empty()) add(name);
  }
  void object(const char* name, const std::function<void()>& body, Need) override {
    const std::string outer = path_;
    path_ += std::string(name) + ".";
    body();
    path_ = outer;
  }
  void list(const char* name, size_t size, size_t, size_t, const std::function<void(size_t)>&,
            const std::function<void(size_t)>& body) override {
    const std::string outer = path_;
    const std::string list_name = name;
    if (list_name == "mtp" || list_name == "rope_tables") path_ += list_name + ".";
    if (list_name == "mtp" && size > 0) names_.insert(list_name);
    for (size_t i = 0; i < size; ++i) body(i);
    path_ = outer;
  }

 private:
  void add(const std::string& name) { names_.insert(path_ + name); }

  std::string path_;
  std::set<std::string> names_;
};

}  // namespace

std::set<std::string> used_fields(const ModelSpec& model) {
  ModelSpec copy = model;  // describe() takes what it describes by reference, for the reader's sake
  Collector collector;
  spec::describe(collector, copy);
  return collector.take();
}

}  // namespace freetoken
