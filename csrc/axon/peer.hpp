// A connected runtime of another process, or of this one. Copies refer to the same peer. Any thread may use it. A peer
// that has been moved from, and the caller of an answered invocation, is empty: it has no name, and calls to it fail
// with kInvalidArgument.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.hpp"

namespace axon::rpc {
class Connection;
}  // namespace axon::rpc

namespace axon::library {

/// A connected runtime, as Runtime::connect returns it.
class Peer {
 public:
  explicit Peer(std::shared_ptr<rpc::Connection> connection) noexcept : connection_(std::move(connection)) {}

  /// @return the name of the peer's runtime
  const std::string& name() const noexcept;
  /// @return a number that identifies the peer's runtime; a restarted runtime has another one
  uint64_t incarnation() const noexcept;
  /// @return why the peer can no longer be called; ok while it can
  Status failure() const noexcept;

  /// Refuses new calls in both directions, waits for calls in flight, and closes the connection. In a function or a
  /// callback it does not wait: calls in flight continue for up to the given time.
  /// @param at_most the longest wait
  /// @return whether no call was left in flight; false if it did not wait
  bool drain(std::chrono::milliseconds at_most) noexcept;
  /// Ends the remaining calls, here and at the peer, which is told. It waits for that for at most a second, except in a
  /// function of the runtime. Closing again does nothing. A new connection has another Peer.
  void close() noexcept;

  // For the library itself.
  const std::shared_ptr<rpc::Connection>& connection() const noexcept { return connection_; }

 private:
  std::shared_ptr<rpc::Connection> connection_;  // shared with the runtime, which may be closed first
};

}  // namespace axon::library
