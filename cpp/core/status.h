// Status and Result<T>: how errors travel inside the core. No exception crosses the public API.
// A message says what is wrong, the number, and the way out.
#pragma once
#include <optional>
#include <string>
#include <utility>

#include "freetoken/status.h"

namespace freetoken {

// A value or a Status that is not ok.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {}
  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace freetoken

#define FT_CONCAT_(a, b) a##b
#define FT_CONCAT(a, b) FT_CONCAT_(a, b)
#define FT_RETURN_IF_ERROR(expr)                       \
  do {                                                 \
    if (::freetoken::Status ft_status = (expr); !ft_status.ok()) return ft_status; \
  } while (0)
#define FT_ASSIGN_OR_RETURN(lhs, expr) FT_ASSIGN_OR_RETURN_(FT_CONCAT(ft_result_, __LINE__), lhs, expr)
#define FT_ASSIGN_OR_RETURN_(tmp, lhs, expr) \
  auto tmp = (expr);                         \
  if (!tmp.ok()) return tmp.status();        \
  lhs = std::move(*tmp)
