// Fields: one description of a struct's JSON form, used for reading and for writing.
//
// describe(Fields&, T&, const T& defaults) names every field of T once. The reader is strict and keeps the first error with
// the field's path; the writer leaves out what equals the default, so that the canonical form is short and unique.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace freetoken::spec {

enum class Need { kRequired, kOptional };

class Fields {
 public:
  virtual ~Fields() = default;
  virtual void integer(const char* name, int& value, int fallback, int low, int high, Need need) = 0;
  virtual void real(const char* name, float& value, float fallback, double low, double high, Need need) = 0;
  virtual void flag(const char* name, bool& value, bool fallback) = 0;
  virtual void choice(const char* name, int& value, int fallback, std::span<const char* const> names, Need need) = 0;
  virtual void reals(const char* name, std::vector<float>& values, double low, double high, size_t max_size, Need need) = 0;
  virtual void object(const char* name, const std::function<void()>& body, Need need) = 0;
  // `resize(n)` makes room for the n elements a reader found, `body(i)` describes one. The writer is given `size`.
  virtual void list(const char* name, size_t size, size_t min_size, size_t max_size,
                    const std::function<void(size_t)>& resize, const std::function<void(size_t)>& body) = 0;
};

// The fields of one struct: member pointers in, defaults from a default-made T.
template <class T>
class Struct {
 public:
  Struct(Fields& fields, T& value) : fields_(fields), value_(value) {}

  void integer(const char* name, int T::*m, int low, int high, Need need = Need::kOptional) {
    fields_.integer(name, value_.*m, defaults().*m, low, high, need);
  }
  void real(const char* name, float T::*m, double low, double high, Need need = Need::kOptional) {
    fields_.real(name, value_.*m, defaults().*m, low, high, need);
  }
  void flag(const char* name, bool T::*m) { fields_.flag(name, value_.*m, defaults().*m); }
  template <class E>
  void choice(const char* name, E T::*m, std::span<const char* const> names, Need need = Need::kOptional) {
    int index = static_cast<int>(value_.*m);
    fields_.choice(name, index, static_cast<int>(defaults().*m), names, need);
    value_.*m = static_cast<E>(index);
  }
  void reals(const char* name, std::vector<float> T::*m, double low, double high, size_t max_size,
             Need need = Need::kOptional) {
    fields_.reals(name, value_.*m, low, high, max_size, need);
  }
  template <class S>
  void object(const char* name, S T::*m, Need need = Need::kOptional) {
    fields_.object(name, [&] { describe(fields_, value_.*m); }, need);
  }
  template <class S>
  void list(const char* name, std::vector<S> T::*m, size_t min_size, size_t max_size) {
    std::vector<S>& items = value_.*m;
    fields_.list(name, items.size(), min_size, max_size, [&](size_t n) { items.resize(n); },
                 [&](size_t i) { describe(fields_, items[i]); });
  }

 private:
  static const T& defaults() {
    static const T made{};
    return made;
  }
  Fields& fields_;
  T& value_;
};

// Bounds that keep a lying file from asking for more than any model has.
inline constexpr int kMaxHidden = 1'000'000;
inline constexpr int kMaxVocab = 16 << 20;
inline constexpr int kMaxPositions = 1 << 30;
inline constexpr int kMaxLayers = 4096;
inline constexpr int kMaxSublayers = 6;
inline constexpr int kMaxHeads = 65536;
inline constexpr int kMaxExperts = 65536;
inline constexpr int kMaxRopeTables = 16;
inline constexpr double kMaxFactor = 1e9;

}  // namespace freetoken::spec
