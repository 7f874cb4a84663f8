// A process's end of calls with others: it registers functions, listens, connects, and calls.
//
//   std::unique_ptr<Runtime> runtime = Runtime::open({.name = "server"}).value();
//   runtime->core().add("echo", [](Invocation& invocation) { …  invocation.reply(); });
//   std::vector<std::byte> address = runtime->address().value();          // hand it to another process, which says
//   std::shared_ptr<Connection> server = runtime->connect(address, deadline).value();
//   server->start(*call);  server->wait(*call, deadline);
//   runtime->serve(stop, Clock::now() + 1h);                               // drives, until `stop` is true
//
// Everything is for any thread. Functions run on whichever thread drives the engine: the one that waits or serves, or
// the engine's own.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/random.hpp"
#include "rpc/core/handshake/listener.hpp"
#include "rpc/core/handshake/listener_address.hpp"
#include "rpc/core/runtime_core.hpp"

namespace axon::rpc {

class Runtime {
 public:
  static Result<std::unique_ptr<Runtime>> open(RuntimeOptions options,
                                               engine::Engine& engine = engine::Engine::instance());
  ~Runtime() { close(); }
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  RuntimeCore& core() noexcept { return *core_; }
  const std::string& name() const noexcept { return core_->options().name; }
  uint64_t incarnation() const noexcept { return incarnation_; }

  // Once a runtime. Port 0: one that is free. Returns the port.
  Result<uint16_t> listen(const SocketAddress& socket_address, const Secret& secret);
  // Whoever is given it may connect, and does not learn the secret. Listens on this host alone, with a secret of its
  // own, if it does not listen yet.
  Result<std::vector<std::byte>> address();
  // What the listener has met and dropped; none while it does not listen.
  std::optional<Listener::Counts> counts();

  // Blocks until the peer has answered, or the deadline.
  Result<std::shared_ptr<Connection>> connect(std::span<const std::byte> address, Clock::time_point deadline);
  Result<std::shared_ptr<Connection>> connect(const SocketAddress& socket_address, const Secret& secret,
                                              Clock::time_point deadline);

  // Drives until `stop` is true, or the deadline. Whoever sets `stop` calls wake() then.
  bool serve(const sync::atomic<bool>& stop, Clock::time_point deadline,
             Clock::duration spin_budget = pace::kSpinBudget);
  void wake();

  // Takes no calls any more, and waits for those under way in both directions, until the deadline. False if some are
  // left; may be called again then.
  bool await_idle(Clock::time_point deadline);
  // The same, and then close().
  bool drain(Clock::time_point deadline);
  // Ends what is left; peers are told. Idempotent.
  void close() noexcept;

 private:
  explicit Runtime(std::shared_ptr<RuntimeCore> core) : core_(std::move(core)), incarnation_(random_number()) {}

  Status may_listen_held() const;
  Result<std::unique_ptr<Listener>> open_listener(const SocketAddress& socket_address, const Secret& secret);
  uint16_t install_held(const SocketAddress& socket_address, std::unique_ptr<Listener> listener);
  Result<EndpointInfo> on_accept(Connected connected);
  EndpointInfo own_info(const engine::PeerAddress& own) const;
  Result<std::shared_ptr<Connection>> admit(Connected connected, uint64_t own_key);

  const std::shared_ptr<RuntimeCore> core_;  // owned with the engine and invocations, see there
  const uint64_t incarnation_;
  std::mutex mutex_;  // guards what follows; never held while anything is waited for but a free port
  std::unique_ptr<Listener> listener_;
  std::optional<ListenerAddress> listener_address_;
  bool closed_ = false;
};

}  // namespace axon::rpc
