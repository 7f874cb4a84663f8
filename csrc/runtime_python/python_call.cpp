#include "runtime_python/python_call.hpp"

#include <sys/eventfd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace axon {

CompletionQueue::CompletionQueue() : event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!event_.valid()) throw std::system_error(errno, std::generic_category(), "eventfd");
}

void CompletionQueue::push(Counted<PythonCall> call) noexcept {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = finished_.empty();
    finished_.push_back(std::move(call));
  }
  const uint64_t one = 1;
  if (first) [[maybe_unused]]
    const ssize_t written = ::write(event_.get(), &one, sizeof one);
}

std::vector<Counted<PythonCall>> CompletionQueue::take() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t read = ::read(event_.get(), &count, sizeof count);  // before: who comes later rings
  const std::lock_guard lock(mutex_);
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

void PythonCall::on_finished() noexcept {
  if (state_.exchange(State::kFinished) != State::kWatched) return;
  sink_->push(Counted<PythonCall>::share(*this));
}

PythonCall::~PythonCall() {
  if (!waiter_) return;
  if (PyGILState_Check() == 0) {  // nobody has taken it, for want of a loop: Python may be gone, too
    waiter_.release();
    return;
  }
  waiter_ = {};
}

}  // namespace axon
