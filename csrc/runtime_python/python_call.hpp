// A call made from Python, and where it is told that it is finished.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "base/file_descriptor.hpp"
#include "runtime/call.hpp"

namespace axon {

class PythonCall;

// Takes calls that are finished, from any thread, which need not hold Python's lock.
class CompletionSink {
 public:
  virtual ~CompletionSink() = default;
  virtual void push(Counted<PythonCall> call) noexcept = 0;
};

// For an event loop: its descriptor becomes readable when the first of a batch is there.
class CompletionQueue final : public CompletionSink {
 public:
  CompletionQueue();

  int fd() const noexcept { return event_.get(); }
  void push(Counted<PythonCall> call) noexcept override;
  // All that have come, in order.
  std::vector<Counted<PythonCall>> take();

 private:
  FileDescriptor event_;
  std::mutex mutex_;  // guards finished_
  std::vector<Counted<PythonCall>> finished_;
};

class PythonCall final : public Call {
 public:
  PythonCall() = default;

  // Once: the sink gets the call when it is finished, and whoever takes it from there the waiter. False if it is
  // finished already. With Python's lock, as take_waiter().
  bool watch(std::shared_ptr<CompletionSink> sink, pybind11::object waiter);
  pybind11::object take_waiter() { return std::move(waiter_); }

 private:
  enum class State : uint8_t { kUnwatched, kWatched, kFinished };

  ~PythonCall() override;
  void on_finished() noexcept override;

  std::atomic<State> state_{State::kUnwatched};
  std::shared_ptr<CompletionSink> sink_;  // owned with the loop or runtime, which may end before the call
  pybind11::object waiter_;
};

}  // namespace axon
