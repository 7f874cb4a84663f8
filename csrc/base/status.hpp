// Errors as values: Status for an action, Result<T> for an action that returns a value.
//
//   Result<int> rank = parse_rank(text);
//   if (!rank.ok()) return std::move(rank.status());
//
// The data path is noexcept and returns these; argument checks and set-up throw (in c10d). A successful Status is a
// null pointer, so returning one on the hot path costs nothing. Every accessor is defined for every state, except
// Result::value() of a failure, which prints the failure and ends the process.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>

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
  kRemote,           // the called function has failed, and reported it
  kCancelled,        // by the caller
  kUnknownHost,      // no address is known for its name
  kUnauthenticated,  // the peer does not know the secret that it should
  kOk,               // the code of a success; last, because handshakes carry the numbers of the others
};

struct Error {
  ErrorCode code;
  std::string message;
};

class [[nodiscard]] Status {
 public:
  Status() noexcept = default;
  Status(ErrorCode code, std::string message)
      : error_(code == ErrorCode::kOk ? nullptr : std::make_unique<Error>(Error{code, std::move(message)})) {}

  bool ok() const noexcept { return error_ == nullptr; }
  const Error& error() const noexcept { return ok() ? success() : *error_; }
  ErrorCode code() const noexcept { return ok() ? ErrorCode::kOk : error_->code; }
  const std::string& message() const noexcept { return error().message; }  // empty for a success

  // Returns a copy. One failure often ends many operations.
  Status clone() const { return ok() ? Status() : Status(error_->code, error_->message); }
  // Returns the same failure with another sentence appended. A success stays a success.
  Status followed_by(const std::string& sentence) const {
    return {code(), message() + (message().ends_with('.') ? " " : ". ") + sentence};
  }

 private:
  static const Error& success() noexcept {
    static const Error none{ErrorCode::kOk, {}};
    return none;
  }

  std::unique_ptr<Error> error_;
};

// A value, or the failure that prevented it.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status failure)
      : status_(failure.ok() ? Status(ErrorCode::kInternal, "a Result was made of a success without a value")
                             : std::move(failure)) {}

  bool ok() const noexcept { return value_.has_value(); }
  T& value() & noexcept { return checked(); }
  const T& value() const& noexcept { return const_cast<Result*>(this)->checked(); }
  T&& value() && noexcept { return std::move(checked()); }
  Status& status() noexcept { return status_; }
  const Status& status() const noexcept { return status_; }

 private:
  T& checked() noexcept {
    if (value_.has_value()) return *value_;
    std::fprintf(stderr, "torch_axon: the value of a failed Result was read: %s\n", status_.message().c_str());
    std::abort();
  }

  std::optional<T> value_;
  Status status_;
};

}  // namespace axon

// Returns the failure from the enclosing function, if there is one.
#define AXON_TRY(expression)                                                                          \
  do {                                                                                                \
    if (::axon::Status axon_try_status = (expression); !axon_try_status.ok()) return axon_try_status; \
  } while (false)

// Like AXON_TRY, inside a coroutine.
#define AXON_CO_TRY(expression)                                                                          \
  do {                                                                                                   \
    if (::axon::Status axon_try_status = (expression); !axon_try_status.ok()) co_return axon_try_status; \
  } while (false)
