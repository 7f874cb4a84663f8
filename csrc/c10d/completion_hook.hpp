// A group's completion hook. A thread of the hook calls it for each finished call of the group, in the order of the
// calls. Calls captured in a graph are not reported. The thread logs the hook's exceptions, because no caller could
// catch them. A second one reports the calls on a device to SuccessHooks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "base/forks.hpp"
#include "c10d/times.hpp"
#include "engine/communicator.hpp"

namespace axon::c10d_backend {

class CompletionHook {
 public:
  struct Call {
    c10d::OpType type;
    uint64_t number;  // of the call in its group, or its key for SuccessHooks
    std::shared_ptr<const Times> times;
    std::weak_ptr<engine::Communicator> communicator;  // what it failed with, its kernels failed with
  };
  using Hook = std::function<void(const Call&, Times::Clock::time_point ended)>;

  explicit CompletionHook(Hook hook);
  // First calls the hook for all noted calls. If Python is exiting, or if the hook itself destroys its group, the
  // thread does so later. Any thread, with the GIL or without.
  ~CompletionHook();
  CompletionHook(const CompletionHook&) = delete;
  CompletionHook& operator=(const CompletionHook&) = delete;

  void note(Call call);
  // Waits until the hook has been called for all calls noted so far. Throws ValueError if the hook itself calls it,
  // because it would wait for its own end.
  void drain();

 private:
  struct State;

  // Also returns when interrupts are pending.
  void await_told() noexcept;
  bool is_own_thread() const noexcept { return std::this_thread::get_id() == thread_id_; }
  // Returns whether the thread exists: after a fork, the child does not have it.
  bool has_thread() const noexcept { return born_after_ == num_forks(); }

  const std::shared_ptr<State> state_;  // shared with the thread, which may outlive this
  const uint32_t born_after_ = num_forks();
  std::thread::id thread_id_;
};

}  // namespace axon::c10d_backend
