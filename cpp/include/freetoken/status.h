// Status: the error type of the public API.
#pragma once
#include <string>
#include <utility>

namespace freetoken {

enum class StatusCode {
  kOk,
  kInvalidArgument,    // the caller's input is wrong: a file, a configuration, a request
  kNotFound,
  kResourceExhausted,  // memory, pages or queue places; the message says how many
  kUnsupported,        // known, but not done by this version or this machine
  kIoError,
  kCancelled,
  kInternal,           // a bug of ours
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}
  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status InvalidArgument(std::string m) { return {StatusCode::kInvalidArgument, std::move(m)}; }
inline Status NotFound(std::string m) { return {StatusCode::kNotFound, std::move(m)}; }
inline Status ResourceExhausted(std::string m) { return {StatusCode::kResourceExhausted, std::move(m)}; }
inline Status Unsupported(std::string m) { return {StatusCode::kUnsupported, std::move(m)}; }
inline Status IoError(std::string m) { return {StatusCode::kIoError, std::move(m)}; }
inline Status Cancelled(std::string m) { return {StatusCode::kCancelled, std::move(m)}; }
inline Status Internal(std::string m) { return {StatusCode::kInternal, std::move(m)}; }

}  // namespace freetoken
