// Errors as values: Status for an action, Result<T> for an action that yields something.
//
// The data path is noexcept and returns these; arguments and set-up throw (at the c10d door). A successful Status is a
// null pointer, so that returning one on the hot path costs nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>

namespace axon {

enum class ErrorCode : uint8_t {
  kInvalidArgument,
  kTimeout,
  kPeerLost,
  kMismatch,
  kAborted,
  kTransport,
  kResourceExhausted,
  kInternal,
  kRemote,     // what was called has failed, and says so
  kCancelled,  // by whoever has called
};

struct Error {
  ErrorCode code;
  std::string message;
};

class [[nodiscard]] Status {
 public:
  Status() noexcept = default;
  Status(ErrorCode code, std::string message) : error_(std::make_unique<Error>(Error{code, std::move(message)})) {}

  bool ok() const noexcept { return error_ == nullptr; }
  const Error& error() const noexcept { return *error_; }
  ErrorCode code() const noexcept { return error_->code; }
  const std::string& message() const noexcept { return error_->message; }

  // One failure often ends many operations; each gets its own copy.
  Status clone() const { return ok() ? Status() : Status(error_->code, error_->message); }
  // The same failure, with a sentence more.
  Status followed_by(const std::string& sentence) const {
    return {code(), message() + (message().ends_with('.') ? " " : ". ") + sentence};
  }

 private:
  std::unique_ptr<Error> error_;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Status failure) : state_(std::in_place_index<1>, std::move(failure)) {}

  bool ok() const noexcept { return state_.index() == 0; }
  T& value() & noexcept { return *std::get_if<0>(&state_); }
  const T& value() const& noexcept { return *std::get_if<0>(&state_); }
  T&& value() && noexcept { return std::move(*std::get_if<0>(&state_)); }
  Status& status() noexcept { return *std::get_if<1>(&state_); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace axon

// Leaves the enclosing function with the failure, if there is one.
#define AXON_TRY(expression)                                                                          \
  do {                                                                                                \
    if (::axon::Status axon_try_status = (expression); !axon_try_status.ok()) return axon_try_status; \
  } while (false)

// The same inside a coroutine.
#define AXON_CO_TRY(expression)                                                                          \
  do {                                                                                                   \
    if (::axon::Status axon_try_status = (expression); !axon_try_status.ok()) co_return axon_try_status; \
  } while (false)
