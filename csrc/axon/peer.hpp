// A runtime of another process, or of this one, that has been met. Copies are the same peer; for any thread. One that
// has been moved from, and the caller of an invocation that has been answered, is no peer: it has no name, and calls to
// it fail (kInvalidArgument).
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

class Peer {
 public:
  explicit Peer(std::shared_ptr<rpc::Connection> connection) noexcept : connection_(std::move(connection)) {}

  const std::string& name() const noexcept;
  // Another one after a restart.
  uint64_t incarnation() const noexcept;
  // Why it cannot be called any more; ok while it can.
  Status failure() const noexcept;

  // Takes no calls any more, in either direction, and waits for those under way; then close(). False if some were left.
  // From within a function or a callback it does not wait, and is false: what is under way goes on, for as long.
  bool drain(std::chrono::milliseconds at_most) noexcept;
  // Ends what is left, here and at the peer, which is told; waits until that is done, for a second at most, but not in
  // a function of the runtime's. Idempotent. Whoever connects anew has another Peer.
  void close() noexcept;

  const std::shared_ptr<rpc::Connection>& connection() const noexcept { return connection_; }

 private:
  std::shared_ptr<rpc::Connection> connection_;  // owned with the runtime, which may be closed before
};

}  // namespace axon::library
