// One-sided transfers: a process exposes memory as a region, and its peers read and write it.
//
//   // The owner:
//   axon::Region region = runtime.expose(cache, {.access = axon::Access::kReadWrite, .name = "cache"}).value();
//   axon::Handle handle = region.handle({}).value();  // pass it to the peer
//   for (const axon::Notification& each : runtime.notifications(1s).value()) use(each.from, each.tag);
//   bool may_free = region.close(1s);
//
//   // The initiator:
//   axon::Remote remote = peer.open(handle, 1s).value();
//   axon::Transfer transfer = peer.write(remote.slice(0, keys.size()).value(), keys, {.notification = "keys"}).value();
//   transfer.wait(1s);
//   if (transfer.status().ok()) use(keys);
//
// Host memory of any alignment and size. Peers of the same host map that of axon::MappableMemory, and move its bytes by
// themselves. docs/one_sided.md says what is promised, and what a handle proves.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "axon/condition.hpp"
#include "base/status.hpp"
#include "memory/mappable_memory.hpp"
#include "memory/owner.hpp"

namespace axon::rpc {
class Region;
class RemoteMemory;
class RuntimeCore;
class Connection;
class Transfer;
class TransferPlan;
}  // namespace axon::rpc

namespace axon::library {

/// What peers may do with memory.
enum class Access : uint8_t { kRead = 1, kWrite = 2, kReadWrite = 3 };

/// The bytes by which a peer opens memory.
using Handle = std::array<std::byte, 64>;

/// How memory is exposed.
struct RegionOptions {
  Access access = Access::kRead;  ///< what peers may do
  std::string name{};             ///< its name in errors, up to 255 bytes
  Owner owner{};                  ///< released once no peer can touch the memory any more
};

/// The part of a region that a handle opens, and the runtime to which it opens it.
struct HandleOptions {
  uint64_t offset = 0;                  ///< the first byte, counted in the region
  std::optional<uint64_t> num_bytes{};  ///< the number of bytes; without it, up to the end of the region
  std::optional<Access> access{};       ///< at most what the region allows; without it, all of that
  uint64_t peer = 0;                    ///< the incarnation of the only runtime that may use the handle; 0: any
};

/// Memory that a runtime exposes, as Runtime::expose returns it. Any thread may use it. It stays exposed until it or
/// its runtime is closed, even if the Region is destroyed.
class Region {
 public:
  // For the library itself.
  Region(std::shared_ptr<rpc::RuntimeCore> core, std::shared_ptr<rpc::Region> region) noexcept
      : core_(std::move(core)), region_(std::move(region)) {}

  /// @return its name in errors
  const std::string& name() const noexcept;
  /// @return its number of bytes
  uint64_t num_bytes() const noexcept;

  /// Returns a handle. Any runtime that has it, and a connection to this runtime, can use these bytes.
  /// @param options which bytes, and for which access
  /// @return the handle, or kInvalidArgument
  Result<Handle> handle(const HandleOptions& options) const;
  /// Denies new requests at once, and waits until no peer can touch the memory any more. Closing again waits again.
  /// @param at_most the longest wait
  /// @return whether the memory may be freed; until then its owner is kept
  bool close(std::chrono::milliseconds at_most);
  /// @return the names of the peers that keep the memory
  std::vector<std::string> holders() const;

 private:
  std::shared_ptr<rpc::RuntimeCore> core_;  // shared with the runtime, which may be closed first
  std::shared_ptr<rpc::Region> region_;     // shared with the runtime
};

/// Memory of a peer, as Peer::open returns it. Copies and slices refer to the same memory. Any thread may use it.
class Remote {
 public:
  // For the library itself.
  Remote(std::shared_ptr<rpc::RemoteMemory> memory, uint64_t offset, uint64_t num_bytes) noexcept
      : memory_(std::move(memory)), offset_(offset), num_bytes_(num_bytes) {}
  /// For the library itself.
  const std::shared_ptr<rpc::RemoteMemory>& memory() const noexcept { return memory_; }
  /// For the library itself.
  uint64_t offset() const noexcept { return offset_; }

  /// @return its number of bytes
  uint64_t num_bytes() const noexcept { return num_bytes_; }
  /// @return the name of the region at the peer
  const std::string& region() const noexcept;
  /// @return what the handle allows
  Access access() const noexcept;
  /// @return how the bytes move, as docs/one_sided.md names it: "shared memory" if this process has mapped the memory
  const char* path() const noexcept;
  /// Returns a part of the memory. Sends no message.
  /// @param offset its first byte, counted in this memory
  /// @param num_bytes its number of bytes
  /// @return the part, or kInvalidArgument
  Result<Remote> slice(uint64_t offset, uint64_t num_bytes) const;

 private:
  std::shared_ptr<rpc::RemoteMemory> memory_;  // shared with slices and transfers
  uint64_t offset_ = 0;                        // in the opened memory
  uint64_t num_bytes_ = 0;
};

/// How one transfer is made.
struct TransferOptions {
  /// Sent to the peer after the data, and not if they failed; up to 65,536 bytes.
  std::optional<std::string> notification{};
  std::chrono::milliseconds timeout{30'000};  ///< after it, the transfer fails with kTimeout
  Owner owner{};                              ///< of local memory; kept until the transfer is released
};

/// A read, write or notification under way, as Peer::read returns it. One thread at a time may use it. It may be
/// destroyed at any time: the transfer continues without it. Local memory must stay valid until released() returns
/// true, unless it has an owner. A transfer that has been moved from is finished and released, with the status
/// kInvalidArgument.
class Transfer {
 public:
  // For the library itself: takes over a reference.
  explicit Transfer(rpc::Transfer* state) noexcept : state_(state) {}
  Transfer(Transfer&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  Transfer& operator=(Transfer&& other) noexcept;
  ~Transfer();

  /// Drives the engine until the transfer is finished.
  /// @param timeout the longest wait
  /// @return whether the transfer is finished; if not, it continues
  bool wait(std::chrono::milliseconds timeout) noexcept;
  /// @return whether the transfer has ended
  bool finished() const noexcept;
  /// @return whether nothing moves to or from local memory any more. After a failure this may follow finished().
  bool released() const noexcept;
  /// Ends the transfer with kCancelled, unless it has finished. Bytes may still move until released().
  void cancel() noexcept;
  /// @return the status of a finished transfer. kAccessDenied: the peer does not allow it, or not any more
  const Status& status() const noexcept;

 private:
  rpc::Transfer* state_ = nullptr;  // shared with the engine while the engine needs it
};

/// Blocks of equal length at equal distances, numbered from 0.
struct Blocks {
  uint64_t num_bytes = 0;  ///< of each block; at least 1
  uint64_t count = 0;      ///< the number of blocks
  uint64_t offset = 0;     ///< where block 0 begins, in bytes
  uint64_t stride = 0;     ///< bytes from the begin of a block to that of the next one; 0: num_bytes
};

/// A row of a table of blocks, which are numbered by their rows. Each may lie in another memory, and have another
/// length.
struct BlockRow {
  uint64_t memory = 0;     ///< the number of the memory
  uint64_t offset = 0;     ///< where the block begins in it, in bytes
  uint64_t num_bytes = 0;  ///< of the block, which may be empty
};

/// Blocks of local memory and of a peer's that many transfers move, as Peer::plan_read returns it. Local memory must
/// stay valid until the last transfer is released. Copies are of the same plan. Any thread may use it.
class Plan {
 public:
  // For the library itself.
  enum class Kind : uint8_t { kRead, kWrite };
  Plan(Kind kind, std::shared_ptr<rpc::Connection> connection, std::shared_ptr<const rpc::TransferPlan> plan) noexcept
      : kind_(kind), connection_(std::move(connection)), plan_(std::move(plan)) {}

  /// Starts the transfer of the i-th local block from or to the i-th remote block, for all i. It never blocks.
  /// @param local_ids numbers of local blocks; read before this returns
  /// @param remote_ids as many numbers of remote blocks
  /// @param options as for Peer::read
  /// @return the transfer, or kInvalidArgument; then nothing is started
  Result<Transfer> post(std::span<const int32_t> local_ids, std::span<const int32_t> remote_ids,
                        TransferOptions options = {}) const;
  /// Starts this transfer each time that a condition is set from now on. One transfer is under way at a time.
  /// @param begin a condition of a runtime of this process
  /// @param local_ids numbers of local blocks
  /// @param remote_ids as many numbers of remote blocks
  /// @param options what follows each transfer, and its limits
  /// @return the series of transfers, or kInvalidArgument
  Result<TriggeredTransfer> post_when(const Condition& begin, std::span<const int32_t> local_ids,
                                      std::span<const int32_t> remote_ids, TriggerOptions options = {}) const;

 private:
  Kind kind_;
  std::shared_ptr<rpc::Connection> connection_;    // shared with the runtime, which may be closed first
  std::shared_ptr<const rpc::TransferPlan> plan_;  // shared with copies
};

}  // namespace axon::library
