// What a runtime consists of beside its sockets: functions, connections, and the invocations under way. A client of the
// engine, for as long as anything of it moves; everything private belongs to the progress owner.
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

// Called by whichever thread drives, without any lock; not to wait there for other calls.
using Handler = std::function<void(Invocation&)>;

struct Function {
  Handler call;
  // Where its arguments go, once they are announced: has Invocation::accept or fail follow, soon. None: in host
  // buffers.
  Handler ask;
};

class RuntimeCore final : public std::enable_shared_from_this<RuntimeCore>, public engine::Client {
 public:
  RuntimeCore(engine::Engine& engine, RuntimeOptions options);
  ~RuntimeCore();
  RuntimeCore(const RuntimeCore&) = delete;
  RuntimeCore& operator=(const RuntimeCore&) = delete;

  // Fails once the engine is shut down. From here on it keeps itself alive until it is closed and at rest.
  Status open();

  engine::Engine& engine() const noexcept { return engine_; }
  const RuntimeOptions& options() const noexcept { return options_; }
  const Inbound::Limits& limits() const noexcept { return limits_; }

  // Any thread, as all up to close().
  Status add(std::string name, Handler handler, Handler ask = {});
  // Handlers and what is set below are told at once, by the progress owner, in the order of the messages: they may
  // do no more than put what they get into a queue. Before there are peers.
  void hand_over_in_order() noexcept { hands_over_in_order_ = true; }
  // What is called for functions of other names.
  void set_fallback(Handler handler);
  // Told of invocations whose callers have given up, by serial().
  void set_on_cancelled(std::function<void(uint64_t serial)> on_cancelled);
  // Told of connections that have come to an end.
  void set_on_lost(std::function<void(const std::shared_ptr<Connection>&)> on_lost);

  // A runtime that has been met; its messages name the key of an address of this engine's.
  Result<std::shared_ptr<Connection>> admit(Identity identity);
  std::vector<std::shared_ptr<Connection>> connections();
  // That have not ended.
  size_t num_connections();
  bool is_idle();

  // From here on callers get an error, and nothing can be called.
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
  // Once it is no client any more and nobody holds an invocation, what has kept it.
  std::shared_ptr<RuntimeCore> keeper_if_through() noexcept;
  // Null: there is none of this name.
  const Function* find(std::string_view name) noexcept;
  void hand_over(engine::Submission& submission) noexcept;
  void ask(Invocation& invocation) noexcept;
  void call(Invocation& invocation) noexcept;
  // Logs a failure that its caller does not hear of, since it has only told. Any thread.
  void report_unheard(const Invocation& invocation, std::string_view class_name, std::string_view message) noexcept;
  void on_cancelled(Invocation& invocation) noexcept;
  void on_caller_lost(Invocation& invocation) noexcept;
  void on_lost(Connection& connection) noexcept;
  // Nothing of it is under way, nor in our hands for the peer to fetch.
  bool is_through_with(const Connection& connection) noexcept;

  void fail_all(const Status& reason) noexcept;
  void forget_ended() noexcept;
  void forget_in_free(const Connection& connection) noexcept;
  void look_after_parked() noexcept;

  using Functions = std::unordered_map<std::string, Function, NameHash, std::equal_to<>>;

  engine::Engine& engine_;
  const RuntimeOptions options_;
  size_t num_early_bytes_ = 0;
  const Inbound::Limits limits_;
  std::shared_ptr<RuntimeCore> self_;               // while it is a client of the engine's, or users hold invocations
  size_t num_held_ = 0;                             // such invocations
  bool has_left_ = false;                           // it is no client any more
  Functions functions_;                             // none is taken out
  Functions::value_type* latest_called_ = nullptr;  // of these: the next call is often of the same
  Function fallback_;
  bool hands_over_in_order_ = false;
  size_t num_asking_ = 0;  // functions
  log::Limit unheard_;
  std::function<void(uint64_t)> on_cancelled_;
  std::function<void(const std::shared_ptr<Connection>&)> on_lost_;
  std::vector<std::shared_ptr<Connection>> connections_;  // owned with users' handles and calls under way
  std::vector<std::unique_ptr<Invocation>> invocations_;  // all that there are
  IntrusiveList<Invocation> free_;
  IntrusiveList<Invocation> parked_;  // done, but the transport still has their memory
  uint64_t num_invoked_ = 0;
  size_t num_running_ = 0;
  bool refuses_ = false;
  bool closed_ = false;
};

}  // namespace axon::rpc
