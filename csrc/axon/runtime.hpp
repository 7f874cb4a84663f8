// A runtime: registers functions for peers, listens for peers and connects to them.
//
// Any thread may use it. Functions run on the thread that drives the engine: one that waits or serves, or the engine's
// own thread, which drives when no other does. Leaving a runtime's scope closes it.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "axon/announced.hpp"
#include "axon/condition.hpp"
#include "axon/generator.hpp"
#include "axon/invocation.hpp"
#include "axon/mailbox.hpp"
#include "axon/one_sided.hpp"
#include "axon/outbox.hpp"
#include "axon/peer.hpp"
#include "base/status.hpp"
#include "rpc/core/handshake/counts.hpp"
#include "rpc/core/options.hpp"

namespace axon::library {

/// A notification that a peer has sent.
struct Notification {
  Peer from;
  std::string tag;
};

/// A process's end of calls to and from other processes.
class Runtime {
 public:
  // How long serve() polls for messages after the last one.
  static constexpr std::chrono::milliseconds kAwake{4};

  /// Opens a runtime.
  /// @param options its name, of 1 to 255 bytes, and its limits
  /// @return the runtime, or an error: kInvalidArgument, or an error of a transport that cannot start
  static Result<Runtime> open(rpc::RuntimeOptions options);
  Runtime(Runtime&&) noexcept;
  Runtime& operator=(Runtime&&) noexcept;
  ~Runtime();

  /// @return the name by which peers know this runtime
  const std::string& name() const noexcept;
  /// @return a number that identifies this runtime; no other runtime has it
  uint64_t incarnation() const noexcept;

  /// Registers a function that peers can call.
  /// @param name its name, of 1 to 255 bytes. Each name is used once; names that begin with "axon." are reserved.
  /// @param handler the function
  /// @param ask chooses memory for tensors of the arguments; without it, the runtime provides memory
  /// @return kInvalidArgument if the name is not allowed or taken
  Status add(std::string name, Handler handler, Ask ask = {});
  /// Registers a generator function, over which peers iterate.
  /// @param name its name, as for add()
  /// @param function opens a generator
  /// @param ask chooses memory for tensors of the arguments; without it, the runtime provides memory
  /// @return kInvalidArgument if the name is not allowed or taken
  Status add_generator(std::string name, GeneratorFunction function, Ask ask = {});

  /// Creates the mailbox for a tag. It must exist before peers send to the tag.
  /// @param tag the tag, of up to 242 bytes, unique in this runtime
  /// @param options its capacity and memory
  /// @return the mailbox, or kInvalidArgument
  Result<Mailbox> mailbox(std::string_view tag, MailboxOptions options = {});
  /// Returns the sending end of a mailbox of a peer.
  /// @param peer the peer
  /// @param tag the tag of the mailbox
  /// @return the outbox, or kInvalidArgument
  Result<Outbox> outbox(const Peer& peer, std::string_view tag);

  /// Lets peers that have the secret connect. A runtime can listen once.
  /// @param host a name or address of this host at which peers reach it
  /// @param port the TCP port; 0 selects a free one
  /// @param secret the secret, of 16 to 1,024 bytes
  /// @return the port, or an error: kUnknownHost, or kInvalidArgument
  Result<uint16_t> listen(const std::string& host, uint16_t port, std::string_view secret);
  /// Returns the address with which other processes can connect. It does not contain the secret. If the runtime does
  /// not listen yet, it listens on loopback, with a secret that it draws.
  /// @return the address, or the error of listening
  Result<std::vector<std::byte>> address();
  /// @return how many peers connected and how many were refused for each reason; empty if the runtime does not listen
  std::optional<rpc::ListenerCounts> counts() const;

  /// Connects to a runtime and blocks until it answers. While nothing listens there, as with a server that is about to
  /// start, it makes further attempts. If this runtime has connected to that one before, and the connection lives,
  /// it returns the same peer: closing it closes it for all that share it.
  /// @param address the address of the runtime
  /// @param timeout the longest time that one attempt may take
  /// @param wait how long further attempts may begin; 0: one attempt. An attempt that has begun may take `timeout` more
  /// @return the peer, or an error: kUnauthenticated (the secrets differ), kTransport (no runtime listens there),
  ///   kMismatch (another version), kTimeout, kPeerLost (the peer is closing), kInvalidArgument (not an address).
  ///   Errors that another attempt cannot change end the wait at once.
  Result<Peer> connect(std::span<const std::byte> address, std::chrono::milliseconds timeout,
                       std::chrono::milliseconds wait = {});
  /// Connects to a runtime that listens at a host and port, and blocks until it answers.
  /// @param host the name or address of the host
  /// @param port the port
  /// @param secret the secret of that runtime
  /// @param timeout the longest time that one attempt may take
  /// @param wait how long further attempts may begin; 0: one attempt
  /// @return the peer, or an error: kUnknownHost, or as above
  Result<Peer> connect(const std::string& host, uint16_t port, std::string_view secret,
                       std::chrono::milliseconds timeout, std::chrono::milliseconds wait = {});
  /// Exposes memory, so that peers with a handle can read or write it without a function of this process.
  /// @param memory host memory, which must stay valid until Region::close returns true, unless it has an owner
  /// @param options access, name and owner
  /// @return the region, or an error: kInvalidArgument, or kAborted (the runtime is closed)
  Result<Region> expose(std::span<std::byte> memory, RegionOptions options);
  /// Takes the notifications that peers have sent, in the order of their arrival. Not for callbacks, if it waits.
  /// @param timeout how long to wait for the first one; the wait ends when the runtime is closed
  /// @param from takes those of this peer only; null: all
  /// @return the notifications, none after the timeout; or kAborted if the runtime is closed, and none is left
  Result<std::vector<Notification>> notifications(std::chrono::milliseconds timeout, const Peer* from = nullptr);

  /// Returns a new condition, which no thread and no kernel has set yet (axon/condition.hpp).
  /// @return the condition; or kInvalidArgument, if the runtime was moved from
  Result<Condition> condition();

  /// @return the number of open connections in both directions
  size_t num_connections() const;

  /// Drives the engine on this thread until stop(). This is optional, but calls are answered faster: in a few
  /// microseconds instead of about fifty.
  /// @param at_most the longest time
  /// @param awake how long to poll after the last message before sleeping until the next one
  /// @return whether stop() was called
  bool serve(std::chrono::milliseconds at_most, std::chrono::milliseconds awake = kAwake);
  /// Ends serve() permanently, from any thread.
  void stop();

  /// Refuses new calls, waits for calls in flight in both directions, and closes the runtime.
  /// @param at_most the longest wait
  /// @return whether no call was left in flight
  bool drain(std::chrono::milliseconds at_most);
  /// Ends the remaining calls, notifies the peers, and waits for at most 10 s for running functions, except one that
  /// calls this. Closing again does nothing.
  void close() noexcept;

 private:
  struct State;
  explicit Runtime(std::unique_ptr<State> state) noexcept;

  std::unique_ptr<State> state_;
};

}  // namespace axon::library
