// A process's end of calls with others: it registers functions, listens, connects.
//
// For any thread. Functions run on whichever thread drives: those that wait or serve, or the engine's own, which drives
// when nobody else does. Leaving a runtime's scope closes it. One that has been moved from is closed: it has no name
// and no connections, and what it is asked for fails with kInvalidArgument.
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
#include "axon/generator.hpp"
#include "axon/invocation.hpp"
#include "axon/mailbox.hpp"
#include "axon/outbox.hpp"
#include "axon/peer.hpp"
#include "base/status.hpp"
#include "rpc/core/handshake/counts.hpp"
#include "rpc/core/options.hpp"

namespace axon::library {

class Runtime {
 public:
  static constexpr std::chrono::milliseconds kAwake{4};

  // Fails where the transport cannot start, or for a name that is empty or longer than 255 bytes.
  static Result<Runtime> open(rpc::RuntimeOptions options);
  Runtime(Runtime&&) noexcept;
  Runtime& operator=(Runtime&&) noexcept;
  ~Runtime();

  const std::string& name() const noexcept;
  uint64_t incarnation() const noexcept;

  // Names of 1 to 255 bytes, each once, that do not begin with "axon.", as the runtime's own do. `ask` says where the
  // tensors of its arguments go; none: in host buffers.
  Status add(std::string name, Handler handler, Ask ask = {});
  // Of the same names: one that peers iterate over.
  Status add_generator(std::string name, GeneratorFunction function, Ask ask = {});

  // Where messages arrive that peers send to this tag, of up to 242 bytes; once a tag.
  Result<Mailbox> mailbox(std::string_view tag, MailboxOptions options = {});
  // Sends to that of a peer.
  Result<Outbox> outbox(const Peer& peer, std::string_view tag);

  // Lets peers connect who know the secret (16 to 1,024 bytes). Port 0: one that is free. Returns the port.
  Result<uint16_t> listen(const std::string& host, uint16_t port, std::string_view secret);
  // Whoever is given it may connect, and does not learn the secret. Listens on this host alone, with a secret of its
  // own, if it does not listen yet.
  Result<std::vector<std::byte>> address();
  // Of those who have come; none while it does not listen.
  std::optional<rpc::ListenerCounts> counts() const;

  // Blocks until the peer has answered, for `timeout` at most. While nobody answers there, as with a server that is
  // about to start, further attempts begin for as long as `wait`; the last one may take `timeout` more. 0: one attempt.
  // What no further attempt changes ends it at once, as other secrets do. Errors: kUnknownHost, kUnauthenticated (the
  // secrets differ), kTransport (nobody listens there), kTimeout, kPeerLost (it is closing), kInvalidArgument (an
  // address or secret of another form).
  Result<Peer> connect(std::span<const std::byte> address, std::chrono::milliseconds timeout,
                       std::chrono::milliseconds wait = {});
  Result<Peer> connect(const std::string& host, uint16_t port, std::string_view secret,
                       std::chrono::milliseconds timeout, std::chrono::milliseconds wait = {});
  // Of both directions, that have not ended.
  size_t num_connections() const;

  // Gives this thread to the runtime, for as long as it is told or until stop(): true. Not needed, but calls are
  // answered sooner: a few microseconds each, not some fifty. It looks for messages without pause for as long as it is
  // awake after the latest one, then sleeps until one comes.
  bool serve(std::chrono::milliseconds at_most, std::chrono::milliseconds awake = kAwake);
  // From any thread; for good.
  void stop();

  // Takes no calls any more and waits for those under way in both directions; then close(). False if some were left.
  bool drain(std::chrono::milliseconds at_most);
  // Ends what is left, tells peers, and waits for functions that are running, but for one that calls this; for 10 s at
  // most. Idempotent.
  void close() noexcept;

 private:
  struct State;
  explicit Runtime(std::unique_ptr<State> state) noexcept;

  std::unique_ptr<State> state_;
};

}  // namespace axon::library
