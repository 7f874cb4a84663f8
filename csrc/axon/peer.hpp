// A connected runtime of another process, or of this one. Copies refer to the same peer. Any thread may use it. A peer
// that has been moved from, and the caller of an answered invocation, is empty: it has no name, and calls to it fail
// with kInvalidArgument.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "axon/one_sided.hpp"
#include "base/status.hpp"

namespace axon::rpc {
class Connection;
}  // namespace axon::rpc

namespace axon::library {

/// A connected runtime, as Runtime::connect returns it.
class Peer {
 public:
  explicit Peer(std::shared_ptr<rpc::Connection> connection) noexcept : connection_(std::move(connection)) {}

  /// @return whether both are the same peer
  bool operator==(const Peer& other) const = default;
  /// @return the name of the peer's runtime
  const std::string& name() const noexcept;
  /// @return a number that identifies the peer's runtime; a restarted runtime has another one
  uint64_t incarnation() const noexcept;
  /// @return why the peer can no longer be called; ok while it can
  Status failure() const noexcept;

  /// Opens memory that the peer exposes, and blocks until the peer answers. Not for callbacks.
  /// @param handle the bytes that Region::handle returned at the peer
  /// @param timeout the longest wait
  /// @return the memory, or kAccessDenied (forged, of another runtime or for another peer, or closed),
  /// kInvalidArgument,
  ///   kTimeout, kPeerLost, kResourceExhausted (65,536 handles are open)
  Result<Remote> open(const Handle& handle, std::chrono::milliseconds timeout) const;
  /// Starts to read memory of the peer. It never blocks.
  /// @param remote what to read
  /// @param into as many bytes, not to be used until the transfer is finished
  /// @param options notification, timeout and the owner of `into`
  /// @return the transfer, or kInvalidArgument; then nothing is started
  Result<Transfer> read(const Remote& remote, std::span<std::byte> into, TransferOptions options = {}) const;
  /// Starts to write memory of the peer. It never blocks. The transfer is finished when all bytes are there; if it
  /// fails, some of them may be.
  /// @param remote what to write
  /// @param source as many bytes, which must not change until the transfer is finished
  /// @param options notification, timeout and the owner of `source`
  /// @return the transfer, or kInvalidArgument; then nothing is started
  Result<Transfer> write(const Remote& remote, std::span<const std::byte> source, TransferOptions options = {}) const;
  /// Prepares reads of many blocks, which Plan::post names by their numbers.
  /// @param into local memory
  /// @param local the blocks in it
  /// @param remote memory of the peer
  /// @param remote_blocks the blocks in it, of equal length
  /// @return the plan, or kInvalidArgument: blocks exceed their memory or overlap, or their lengths differ
  Result<Plan> plan_read(std::span<std::byte> into, const Blocks& local, const Remote& remote,
                         const Blocks& remote_blocks) const;
  /// Prepares reads of blocks that tables list.
  /// @param into local memories
  /// @param local the blocks in them
  /// @param remotes memories of the peer
  /// @param remote_blocks the blocks in them
  /// @return the plan, or kInvalidArgument: a block exceeds its memory. Plan::post compares the lengths
  Result<Plan> plan_read(std::span<const std::span<std::byte>> into, std::span<const BlockRow> local,
                         std::span<const Remote> remotes, std::span<const BlockRow> remote_blocks) const;
  /// Prepares writes of many blocks.
  /// @param source local memory
  /// @param local the blocks in it
  /// @param remote memory of the peer
  /// @param remote_blocks the blocks in it, of equal length
  /// @return the plan, or kInvalidArgument, as for plan_read()
  Result<Plan> plan_write(std::span<const std::byte> source, const Blocks& local, const Remote& remote,
                          const Blocks& remote_blocks) const;
  /// Prepares writes of blocks that tables list.
  /// @param sources local memories
  /// @param local the blocks in them
  /// @param remotes memories of the peer
  /// @param remote_blocks the blocks in them
  /// @return the plan, or kInvalidArgument, as for the reads
  Result<Plan> plan_write(std::span<const std::span<const std::byte>> sources, std::span<const BlockRow> local,
                          std::span<const Remote> remotes, std::span<const BlockRow> remote_blocks) const;
  /// Sends the peer a notification, which waits there until Runtime::notifications takes it.
  /// @param tag up to 65,536 bytes
  /// @param timeout after it, the transfer fails
  /// @return the transfer, which is finished when the notification is in the peer's queue; or kInvalidArgument
  Result<Transfer> notify(std::string tag, std::chrono::milliseconds timeout) const;

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
