// Entry point for calls between processes: it registers functions, listens, connects, and calls.
//
// Ownership: shares its core with the engine and with invocations; close() ends all connections. Threads: every
// function is for any thread. Registered functions run on the thread that drives the engine: a thread that waits or
// serves, or the engine's own.
//
//   std::unique_ptr<Runtime> runtime = Runtime::open({.name = "server"}).value();
//   runtime->core().add("echo", [](Invocation& invocation) { invocation.reply(); });
//   std::vector<std::byte> address = runtime->address().value();  // hand it to another process, which calls:
//   std::shared_ptr<Connection> server = runtime->connect(address, deadline).value();
//   server->start(*call);
//   server->wait(*call, deadline);
//   runtime->serve(stop, Clock::now() + 1h);  // drives until `stop` is true
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/random.hpp"
#include "engine/instance.hpp"
#include "rpc/core/handshake/listener.hpp"
#include "rpc/core/handshake/listener_address.hpp"
#include "rpc/core/opened_connections.hpp"
#include "rpc/core/runtime_core.hpp"

namespace axon::rpc {

class Runtime {
 public:
  static Result<std::unique_ptr<Runtime>> open(RuntimeOptions options, engine::Engine& engine = engine::instance());
  ~Runtime() { close(); }
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  RuntimeCore& core() noexcept { return *core_; }
  const std::string& name() const noexcept { return core_->options().name; }
  uint64_t incarnation() const noexcept { return incarnation_; }

  // Call once per runtime. Port 0 picks a free port. Returns the port.
  Result<uint16_t> listen(const SocketAddress& socket_address, const Secret& secret);
  // Returns an address whose holders may connect without learning the secret. If the runtime does not listen yet, it
  // listens on this host only, with a secret of its own.
  // `host`: another name of this host than that of listen(); empty: that one.
  Result<std::vector<std::byte>> address(const std::string& host = {});
  // Counts of accepted and dropped connections; empty while it does not listen.
  std::optional<Listener::Counts> counts();

  // Blocks until the peer has answered, or until the deadline. Returns the connection that an earlier call has opened
  // to the same runtime, while that one lives: neither end closes it, and the peer is there.
  Result<std::shared_ptr<Connection>> connect(std::span<const std::byte> address, Clock::time_point deadline);
  Result<std::shared_ptr<Connection>> connect(const SocketAddress& socket_address, const Secret& secret,
                                              Clock::time_point deadline);
  // Undoes a connect() whose caller is gone: closes the connection, unless another connect() has returned it as well.
  void undo_connect(Connection& connection) { opened_.undo(connection); }

  // Drives until `stop` is true, or until the deadline. The thread that sets `stop` must call wake().
  bool serve(const sync::atomic<bool>& stop, Clock::time_point deadline,
             Clock::duration spin_budget = pace::kSpinBudget);
  void wake();

  // Accepts no more calls, and waits until the deadline for those under way in both directions. Returns false if some
  // are left; may be called again then.
  bool await_idle(Clock::time_point deadline);
  // Calls await_idle() and then close().
  bool drain(Clock::time_point deadline);
  // Ends everything that is left, and tells the peers. Idempotent.
  void close() noexcept;

 private:
  explicit Runtime(std::shared_ptr<RuntimeCore> core) : core_(std::move(core)), incarnation_(random_number()) {
    core_->exposed()->regions.set_incarnation(incarnation_);
  }

  Status may_listen_held() const;
  Result<std::unique_ptr<Listener>> open_listener(const SocketAddress& socket_address, const Secret& secret);
  uint16_t install_held(const SocketAddress& socket_address, std::unique_ptr<Listener> listener);
  Result<EndpointInfo> on_accept(Connected connected);
  EndpointInfo own_info(const engine::PeerAddress& own) const;
  Result<std::shared_ptr<Connection>> admit(Connected connected, uint64_t own_key);
  using KeyOf = std::function<Secret(const ListenerIdentity&)>;
  // `key_of` returns the key of the listener's addresses.
  Result<std::shared_ptr<Connection>> connect(const SocketAddress& socket_address, const Secret& secret,
                                              const KeyOf& key_of, Clock::time_point deadline);

  const std::shared_ptr<RuntimeCore> core_;  // shared with the engine and invocations, see RuntimeCore
  const uint64_t incarnation_;
  std::mutex mutex_;  // guards the following members; held during a wait only for a free port
  std::unique_ptr<Listener> listener_;
  std::optional<ListenerAddress> listener_address_;
  bool closed_ = false;
  OpenedConnections opened_;
};

}  // namespace axon::rpc
