// The open generators of a runtime, by caller and the caller's number (docs/wire.md).
//
//   generators.open(invocation, number, std::make_shared<ClientGenerator>(...));  // answers with the number
//   generators.next(invocation);                                                  // the function kNext
//   generators.stop(invocation);                                                  // the function kStop
//
// Clients derive a class that produces the values. Any thread; generators are called, closed and destroyed outside of
// the lock, since all of that may run users' functions.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "base/status.hpp"
#include "rpc/core/connection.hpp"
#include "rpc/core/invocation.hpp"

namespace axon::rpc {

inline constexpr std::string_view kNext = "axon.next";
inline constexpr std::string_view kStop = "axon.stop";
inline constexpr std::string_view kNumber = "axon.number";  // the named argument that says that the caller iterates

class OpenGenerator {
 public:
  virtual ~OpenGenerator() = default;
  // Answers with the next value as [count, value], or with nothing after the last one. Several threads may call it.
  virtual void next(Invocation& invocation) = 0;
  // Ends the generator. What produces its values is destroyed when no thread is executing it.
  virtual void close() noexcept = 0;
};

class Generators {
 public:
  // Adds a generator under a number that its caller chose, and answers the call that opens it.
  void open(Invocation& invocation, int64_t number, std::shared_ptr<OpenGenerator> generator);
  void next(Invocation& invocation);
  void stop(Invocation& invocation);
  // Closes the generators of a caller whose connection has ended. If that may have been reported before open() or
  // stop(), the client calls it after these.
  void drop(Connection& connection);
  void close() noexcept;

 private:
  using Shared = std::shared_ptr<OpenGenerator>;  // shared with the threads that run it

  struct Caller {
    std::unordered_map<int64_t, Shared> open;
    // The latest stops. A stop may overtake requests for values, and the opening, whose arguments are larger.
    std::deque<int64_t> stopped;

    bool has_stopped(int64_t number) const noexcept;
  };

  // Returns why the generator cannot be opened, or ok.
  Status add(Connection& caller, int64_t number, const Shared& generator);

  std::mutex mutex_;                                                 // guards the following members
  std::unordered_map<std::shared_ptr<Connection>, Caller> callers_;  // shared with the runtime
  size_t num_open_ = 0;
  bool is_closed_ = false;
};

}  // namespace axon::rpc
