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

/// The kind of a failure. The message describes what happened.
enum class ErrorCode : uint8_t {
  kInvalidArgument,    // an argument or the state of an object does not allow it
  kTimeout,            // it took longer than it may
  kPeerLost,           // the process of a peer has ended, or cannot be reached any more
  kMismatch,           // the ranks of a group called different operations, or got different results
  kAborted,            // the group, the runtime or the connection has been closed
  kTransport,          // the network or the host refused it
  kResourceExhausted,  // a limit was reached, such as memory, descriptors or queued calls
  kInternal,           // a fault of this library
  kRemote,             // the called function has failed, and reported it
  kCancelled,          // by the caller
  kUnknownHost,        // no address is known for its name
  kUnauthenticated,    // the peer does not know the secret that it should
  kAccessDenied,       // the memory is not exposed to this peer, at this place, for this access, or any more
  kOk,                 // the code of a success; last, because handshakes carry the numbers of the others
};

/// A failure.
struct Error {
  ErrorCode code;
  std::string message;
};

/// The outcome of an action: a success, or a failure and its cause. Move-only. One thread at a time may use it.
class [[nodiscard]] Status {
 public:
  /// Makes a success.
  Status() noexcept = default;
  /// Makes a failure; a success if the code is kOk.
  /// @param code what kind of failure it is
  /// @param message what happened, with the argument or peer that it concerns
  Status(ErrorCode code, std::string message)
      : error_(code == ErrorCode::kOk ? nullptr : std::make_unique<Error>(Error{code, std::move(message)})) {}

  /// @return whether the action succeeded
  bool ok() const noexcept { return error_ == nullptr; }
  /// @return code and message, valid as long as this Status
  const Error& error() const noexcept { return ok() ? success() : *error_; }
  /// @return the kind of failure; kOk for a success
  ErrorCode code() const noexcept { return ok() ? ErrorCode::kOk : error_->code; }
  /// @return what happened, valid as long as this Status; empty for a success
  const std::string& message() const noexcept { return error().message; }

  /// @return a copy, since one failure often ends many operations
  Status clone() const { return ok() ? Status() : Status(error_->code, error_->message); }
  /// @param sentence a sentence to append to the message
  /// @return the same failure with that message; a success stays a success
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

/// A value, or the failure that prevented it. One thread at a time may use it.
template <typename T>
class [[nodiscard]] Result {
 public:
  /// Makes a success.
  Result(T value) : value_(std::move(value)) {}
  /// Makes a failure.
  /// @param failure why there is no value; a success becomes kInternal
  Result(Status failure)
      : status_(failure.ok() ? Status(ErrorCode::kInternal, "a Result was made of a success without a value")
                             : std::move(failure)) {}

  /// @return whether there is a value
  bool ok() const noexcept { return value_.has_value(); }
  /// @return the value. Reading that of a failure prints the failure and ends the process.
  T& value() & noexcept { return checked(); }
  const T& value() const& noexcept { return const_cast<Result*>(this)->checked(); }
  T&& value() && noexcept { return std::move(checked()); }
  /// @return why there is no value; a success if there is one
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
