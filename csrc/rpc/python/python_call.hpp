// A call made from Python, and where it is told that it is finished.
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

namespace axon::rpc_python {

class PythonCall;

// Takes calls that are finished, from any thread, which need not hold Python's lock.
class CompletionSink {
 public:
  virtual ~CompletionSink() = default;
  virtual void push(rpc::Counted<PythonCall> call) noexcept = 0;
};

// Takes calls whose answers are announced, to say where their tensors go; likewise.
class DestinationSink {
 public:
  virtual ~DestinationSink() = default;
  virtual void push_announced(rpc::Counted<PythonCall> call) noexcept = 0;
};

// For an event loop, and made on its thread: either the loop drives the engine between its other work, while answers
// come soon, or its descriptor becomes readable when the first of a batch is there.
class CompletionQueue final : public CompletionSink {
 public:
  using Calls = std::vector<rpc::Counted<PythonCall>>;

  explicit CompletionQueue(engine::Engine& engine);
  ~CompletionQueue() override;
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  int fd() const noexcept { return event_.get(); }
  void push(rpc::Counted<PythonCall> call) noexcept override;
  // All that have come, in order.
  Calls take();
  // For good: the loop is closed. Gives the descriptor back and returns all that are left; what comes is dropped, along
  // with whoever waited for it there. With Python's lock.
  Calls close();

  // From here on the loop calls drive(), once each time around, until it says that it does so no more: the descriptor
  // tells it nothing meanwhile. The loop's thread only, as drive().
  void begin_driving();
  void stop_driving() noexcept;
  // Drives until something comes, for some microseconds; not at all that long where the loop has other work. None: it
  // has waited in vain for long enough.
  std::optional<Calls> drive();

 private:
  void ring_held() noexcept;

  engine::Engine* engine_;
  const unsigned long thread_;  // the loop's
  sync::atomic<bool> has_come_{false};
  std::mutex mutex_;  // guards what follows
  FileDescriptor event_;
  Calls finished_;
  bool is_driven_ = false;
  bool is_closed_ = false;

  // The loop's thread only.
  sync::Clock::time_point busy_at_{};
  sync::Clock::time_point left_at_{};
};

class PythonCall final : public rpc::Call {
 public:
  explicit PythonCall(std::shared_ptr<rpc::Connection> connection) noexcept : connection_(std::move(connection)) {
    awaits_acks = true;
  }

  const std::shared_ptr<rpc::Connection>& connection() const noexcept { return connection_; }

  // Once: the sink gets the call when it is finished, and whoever takes it from there the waiter. False if it is
  // finished already. With Python's lock, as take_waiter().
  bool watch(std::shared_ptr<CompletionSink> sink, pybind11::object waiter);
  pybind11::object take_waiter() { return std::move(waiter_); }
  // Nobody hears of it there any more. With or without Python's lock.
  void drop_waiter() noexcept;
  // The sink that it was watched by is not told any more. False if it is finished: the sink has been, or nobody was.
  bool unwatch();

  // True once: whoever asked first unpacks the answer.
  bool claim_answer() noexcept { return !is_claimed_.exchange(true, std::memory_order_relaxed); }

  // Before it is started: `sink` is told when its answer is announced, and has Connection::accept or decline called.
  void ask_destinations(std::shared_ptr<DestinationSink> sink, pybind11::object where);
  const pybind11::object& where() const noexcept { return where_; }
  // Why it was declined: an exception; or null.
  void set_destination_error(pybind11::object exception) { destination_error_ = std::move(exception); }
  const pybind11::object& destination_error() const noexcept { return destination_error_; }

 private:
  enum class State : uint8_t { kUnwatched, kWatched, kFinished };

  ~PythonCall() override;
  void on_announced() noexcept override;
  void on_finished() noexcept override;

  const std::shared_ptr<rpc::Connection> connection_;  // owned with the runtime, which may be gone before
  std::atomic<State> state_{State::kUnwatched};
  std::atomic<bool> is_claimed_{false};
  std::shared_ptr<CompletionSink> sink_;  // owned with the loop or runtime, which may end before the call
  pybind11::object waiter_;
  std::shared_ptr<DestinationSink> destination_sink_;  // likewise
  pybind11::object where_;
  pybind11::object destination_error_;
};

}  // namespace axon::rpc_python
