// A call made from Python, and the sink that learns of its end.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/file_descriptor.hpp"
#include "engine/engine.hpp"
#include "rpc/core/call.hpp"
#include "rpc/core/connection.hpp"

PYBIND11_DECLARE_HOLDER_TYPE(T, axon::rpc::Counted<T>, true)

namespace axon::rpc_python {

class PythonCall;

// Receives finished calls, from any thread, with or without the GIL.
class CompletionSink {
 public:
  virtual ~CompletionSink() = default;
  virtual void push(rpc::Counted<PythonCall> call) noexcept = 0;
};

// Receives calls whose answers are announced, to decide where the tensors go; from any thread, as above.
class DestinationSink {
 public:
  virtual ~DestinationSink() = default;
  virtual void push_announced(rpc::Counted<PythonCall> call) noexcept = 0;
};

// Queue for an event loop, created on the loop's thread. While answers arrive often, the loop drives the engine between
// its other work. Otherwise the descriptor becomes readable when the first call of a batch is there.
class CompletionQueue final : public CompletionSink {
 public:
  using Calls = std::vector<rpc::Counted<PythonCall>>;

  explicit CompletionQueue(engine::Engine& engine);
  ~CompletionQueue() override;
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  int fd() const noexcept { return event_.get(); }
  void push(rpc::Counted<PythonCall> call) noexcept override;
  // Returns all calls that have arrived, in order.
  Calls take();
  // Closes the queue permanently, because the loop is closed. Closes the descriptor and returns all calls that are
  // left. Later calls are dropped together with their waiters. With the GIL held.
  Calls close();

  // From here on the loop calls drive() once per iteration, until drive() returns None; the descriptor is not signalled
  // in the meantime. Loop's thread only, as drive().
  void begin_driving();
  void stop_driving() noexcept;
  // Drives until a call arrives, for some microseconds, or for less if the loop has other work. Returns None after
  // enough fruitless attempts.
  std::optional<Calls> drive();

 private:
  void ring_held() noexcept;

  engine::Engine* engine_;
  const unsigned long thread_;  // the loop's thread
  sync::atomic<bool> has_calls_{false};
  std::mutex mutex_;  // guards the following members
  FileDescriptor event_;
  Calls finished_;
  bool is_driven_ = false;
  bool is_closed_ = false;

  // Loop's thread only.
  sync::Clock::time_point busy_at_{};
  sync::Clock::time_point left_at_{};
};

class PythonCall final : public rpc::Call {
 public:
  explicit PythonCall(rpc::Connection& connection) : connection_(connection.shared_from_this()) { awaits_acks = true; }

  rpc::Connection& connection() const noexcept { return *connection_; }

  // Call once. The sink receives the call when it is finished, and the thread that takes it from there gets the waiter.
  // Returns false if the call is finished already. With the GIL held, as take_waiter().
  bool watch(std::shared_ptr<CompletionSink> sink, pybind11::object waiter);
  pybind11::object take_waiter() { return std::move(waiter_); }
  // Drops the waiter, which will not be notified. With or without the GIL.
  void drop_waiter() noexcept;
  // Detaches the call from its sink. Returns false if the call is finished: then the sink was notified, or there was
  // none.
  bool unwatch();

  // Returns true once: the first caller unpacks the answer.
  bool claim_answer() noexcept { return !is_claimed_.exchange(true, std::memory_order_relaxed); }

  // Call it before the start. `sink` is notified when the answer is announced, and must call Connection::accept or
  // decline.
  void ask_destinations(std::shared_ptr<DestinationSink> sink, pybind11::object where);
  const pybind11::object& where() const noexcept { return where_; }
  // The exception for which the answer was declined, or null.
  void set_destination_error(pybind11::object exception) { destination_error_ = std::move(exception); }
  const pybind11::object& destination_error() const noexcept { return destination_error_; }

 private:
  enum class State : uint8_t { kUnwatched, kWatched, kFinished };

  ~PythonCall() override;
  void on_announced() noexcept override;
  void on_finished() noexcept override;

  const std::shared_ptr<rpc::Connection> connection_;  // shared with the runtime, which may be destroyed first
  std::atomic<State> state_{State::kUnwatched};
  std::atomic<bool> is_claimed_{false};
  std::shared_ptr<CompletionSink> sink_;  // shared with the loop or runtime, which may end before the call
  pybind11::object waiter_;
  std::shared_ptr<DestinationSink> destination_sink_;  // shared with the runtime, which may end before the call
  pybind11::object where_;
  pybind11::object destination_error_;
};

}  // namespace axon::rpc_python
