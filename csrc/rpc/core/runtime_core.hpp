// The part of a runtime without its sockets: functions, connections, and the invocations under way. It is a client of
// the engine as long as any transfer is running. Everything private belongs to the progress owner.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/log.hpp"
#include "engine/engine.hpp"
#include "rpc/core/connection.hpp"
#include "rpc/core/options.hpp"

namespace axon::rpc {

// Called by the thread that drives, without any lock; it must not wait for other calls.
using Handler = std::function<void(Invocation&)>;

struct Function {
  Handler call;
  // Decides where the arguments go once they are announced: it must lead to Invocation::accept or fail soon. Without it
  // they go to host buffers.
  Handler ask;
};

// More than 30 methods: functions, connections and invocations refer to each other, and one object must outlive and
// close them all.
class RuntimeCore final : public std::enable_shared_from_this<RuntimeCore>, public engine::Client {
 public:
  RuntimeCore(engine::Engine& engine, RuntimeOptions options);
  ~RuntimeCore();
  RuntimeCore(const RuntimeCore&) = delete;
  RuntimeCore& operator=(const RuntimeCore&) = delete;

  // Fails after the engine is shut down. From here on the core keeps itself alive until it is closed and at rest.
  Status open();

  engine::Engine& engine() const noexcept { return engine_; }
  const RuntimeOptions& options() const noexcept { return options_; }
  const Inbound::Limits& limits() const noexcept { return limits_; }

  // Any thread, as for all functions up to close().
  Status add(std::string name, Handler handler, Handler ask = {});
  // The progress owner calls handlers and the callbacks below at once, in the order of the messages. They may only put
  // what they get into a queue. Call it before there are peers.
  void hand_over_in_order() noexcept { hands_over_in_order_ = true; }
  // Handler for functions of unknown names.
  void set_fallback(Handler handler);
  // Receives the serial() of each invocation whose caller has given up.
  void set_on_cancelled(std::function<void(uint64_t serial)> on_cancelled);
  // Receives new connections, each before its first call and its end.
  void set_on_connected(std::function<void(Connection&)> on_connected);
  // Receives connections that have ended.
  void set_on_lost(std::function<void(Connection&)> on_lost);

  // What this runtime exposes, and what it is notified of. Regions are exposed, revoked and awaited through the next
  // four.
  const std::shared_ptr<Exposed>& exposed() const noexcept { return exposed_; }
  // Fails once the runtime refuses new connections, so that no region misses the end of the others.
  Result<std::shared_ptr<Region>> expose(RegionSpecification specification, Owner owner);
  // Returns the names of the peers that may be reading the region directly, and of those with which its bytes are
  // moving.
  std::vector<std::string> holders(const Region& region);
  void revoke(Region& region) noexcept;
  bool is_at_rest(const Region& region);

  // Adds a connection after its handshake; the peer's messages carry a key of an address of this engine.
  Result<std::shared_ptr<Connection>> admit(Identity identity);
  std::vector<std::shared_ptr<Connection>> connections();
  // Connections that have not ended.
  size_t num_connections();
  bool is_idle();

  // From here on callers get an error, and no function can be called.
  void refuse_new() noexcept;
  // Ends what is left. Idempotent.
  void close() noexcept;

 private:
  friend class Connection;
  friend class Invocation;

  // Client
  bool tick(Clock::time_point now) noexcept override;
  bool has_running() const noexcept override;
  bool is_closed() const noexcept override { return closed_; }
  void on_peer_lost(transport::PeerId peer, const std::string& reason) noexcept override;
  void on_shut_down() noexcept override;
  void on_transport_gone() noexcept override;

  // For connections and invocations.
  Invocation& take_invocation() noexcept;
  void recycle(Invocation& invocation) noexcept;
  void hold(Invocation& invocation) noexcept;
  // Returns the reference that keeps the core alive, once it is no client any more and users hold no invocation.
  std::shared_ptr<RuntimeCore> take_self_if_unused() noexcept;
  // Returns null if there is no function of this name.
  const Function* find(std::string_view name) noexcept;
  void hand_over(engine::Submission& submission) noexcept;
  void ask(Invocation& invocation) noexcept;
  void call(Invocation& invocation) noexcept;
  // Logs a failure of a one-way call, which its caller does not learn. Any thread.
  void report_unheard(const Invocation& invocation, std::string_view class_name, std::string_view message) noexcept;
  void on_cancelled(Invocation& invocation) noexcept;
  void on_caller_lost(Invocation& invocation) noexcept;
  void on_lost(Connection& connection) noexcept;
  // Returns whether the connection has nothing under way, and exposes nothing for the peer to read.
  bool is_through_with(const Connection& connection) noexcept;

  void end_exposing() noexcept;
  void fail_all(const Status& reason) noexcept;
  void forget_ended() noexcept;
  void forget_in_free(const Connection& connection) noexcept;
  void look_after_parked() noexcept;

  using Functions = std::unordered_map<std::string, Function, NameHash, std::equal_to<>>;

  engine::Engine& engine_;
  const RuntimeOptions options_;
  const std::shared_ptr<Exposed> exposed_;  // shared with connections, which may outlive the core
  size_t num_early_bytes_ = 0;
  const Inbound::Limits limits_;
  std::shared_ptr<RuntimeCore> self_;               // set while it is a client of the engine, or users hold invocations
  size_t num_held_ = 0;                             // invocations that users hold
  bool has_left_ = false;                           // it is no longer a client
  Functions functions_;                             // never shrinks
  Functions::value_type* latest_called_ = nullptr;  // a cache: the next call is often for the same function
  Function fallback_;
  bool hands_over_in_order_ = false;
  size_t num_asking_ = 0;  // functions with an `ask` handler
  log::Limit unheard_;
  std::function<void(uint64_t)> on_cancelled_;
  std::function<void(Connection&)> on_connected_;
  std::function<void(Connection&)> on_lost_;
  std::vector<std::shared_ptr<Connection>> connections_;  // shared with users' handles and calls under way
  std::vector<std::unique_ptr<Invocation>> invocations_;  // all of them
  IntrusiveList<Invocation> free_;
  IntrusiveList<Invocation> parked_;  // done, but the transport still uses their memory
  uint64_t num_invoked_ = 0;
  size_t num_running_ = 0;
  bool refuses_ = false;
  bool closed_ = false;
};

}  // namespace axon::rpc
