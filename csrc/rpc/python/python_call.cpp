#include "rpc/python/python_call.hpp"

#include <cerrno>
#include <stdexcept>
#include <utility>

#include "base/event_descriptor.hpp"
#include "base/resources.hpp"
#include "engine/instance.hpp"
#include "python/gil.hpp"
#include "python/signals.hpp"
#include "rpc/python/destinations.hpp"

namespace axon::rpc_python {

// A wake-up through the descriptor takes about 20 µs, so it is worth spinning for a few times that.
static constexpr std::chrono::microseconds kSpinBudget{200};
// Longest time that a loop without other work drives; meanwhile it does not see its sockets and timers.
static constexpr std::chrono::microseconds kLongestDrive{20};
// A loop that returns later than this has other work.
static constexpr std::chrono::microseconds kOwnTurn{30};

CompletionQueue::CompletionQueue(engine::Engine& engine)
    : engine_(&engine), thread_(python::waiting_thread()), event_(open_event()) {
  if (!event_.valid()) throw std::runtime_error("torch_axon: " + out_of("eventfd", errno).message());
}

// Handles a loop that was garbage-collected without being closed. A call and its waiter refer to each other.
CompletionQueue::~CompletionQueue() {
  for (const rpc::Counted<PythonCall>& call : finished_) call->drop_waiter();
}

void CompletionQueue::push(rpc::Counted<PythonCall> call) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!is_closed_) {
      const bool rings = finished_.empty() && !is_driven_ && !python::would_block(thread_);
      finished_.push_back(std::move(call));
      has_calls_.store(true);
      if (rings) ring_held();
      return;
    }
  }
  call->drop_waiter();
}

// Holds the lock, because another thread may close the descriptor.
void CompletionQueue::ring_held() noexcept {
  set_event(event_);
}

std::vector<rpc::Counted<PythonCall>> CompletionQueue::take() {
  clear_event(event_);  // before the calls are taken: later pushes ring again
  const std::lock_guard lock(mutex_);
  has_calls_.store(false);
  return std::exchange(finished_, {});
}

std::vector<rpc::Counted<PythonCall>> CompletionQueue::close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  event_ = FileDescriptor();
  return std::exchange(finished_, {});
}

void CompletionQueue::begin_driving() {
  if (engine_->has_ended()) engine_ = &engine::instance();  // the engine of the awaited call
  busy_at_ = sync::Clock::now();
  const std::lock_guard lock(mutex_);
  is_driven_ = true;
}

void CompletionQueue::stop_driving() noexcept {
  const std::lock_guard lock(mutex_);
  is_driven_ = false;
  if (!finished_.empty()) ring_held();
}

std::optional<CompletionQueue::Calls> CompletionQueue::drive() {
  const sync::Clock::time_point began = sync::Clock::now();
  const bool loop_is_busy = began - left_at_ > kOwnTurn;
  engine_->wait(has_calls_, loop_is_busy ? began : began + kLongestDrive);
  left_at_ = sync::Clock::now();
  const std::lock_guard lock(mutex_);
  has_calls_.store(false);
  if (!finished_.empty()) {
    busy_at_ = left_at_;
  } else if (left_at_ - busy_at_ > kSpinBudget) {
    return std::nullopt;
  }
  return std::exchange(finished_, {});
}

bool PythonCall::watch(std::shared_ptr<CompletionSink> sink, pybind11::object waiter) {
  sink_ = std::move(sink);
  waiter_ = std::move(waiter);
  State expected = State::kUnwatched;
  if (state_.compare_exchange_strong(expected, State::kWatched)) return true;
  waiter_ = {};
  return false;
}

void PythonCall::drop_waiter() noexcept {
  if (!python::python_goes_on()) return;
  const python::GilHeld gil;
  const pybind11::object gone = take_waiter();
}

bool PythonCall::unwatch() {
  State expected = State::kWatched;
  return state_.compare_exchange_strong(expected, State::kUnwatched);
}

void PythonCall::ask_destinations(std::shared_ptr<DestinationSink> sink, pybind11::object where) {
  destinations = rpc::TensorDestinations::kAsked;
  destination_sink_ = std::move(sink);
  where_ = std::move(where);
}

void PythonCall::on_announced() noexcept {
  destination_sink_->push_announced(rpc::Counted<PythonCall>::share(*this));
}

void PythonCall::on_finished() noexcept {
  if (state_.exchange(State::kFinished) != State::kWatched) return;
  const auto sink =
      std::move(sink_);  // the sink holds the call that it receives, and the call must not hold the sink then
  sink->push(rpc::Counted<PythonCall>::share(*this));
}

PythonCall::~PythonCall() {
  let_go(std::move(waiter_));
  let_go(std::move(where_));
  let_go(std::move(destination_error_));
}

}  // namespace axon::rpc_python
