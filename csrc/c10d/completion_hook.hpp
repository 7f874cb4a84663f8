// A group's completion hook: called for each of its calls once that is over, in the order of the calls, by a thread of
// its own. What is captured in a graph is not a call. What the hook throws is logged: nobody is there to catch it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "base/forks.hpp"
#include "c10d/times.hpp"

namespace axon::c10d_backend {

class CompletionHook {
 public:
  using Hook = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;

  struct Call {
    c10d::OpType type;
    uint64_t sequence;
    std::shared_ptr<const Times> times;
  };

  explicit CompletionHook(Hook hook);
  // Called for all that has been noted first, unless Python ends, or it is a hook that destroys its own group: then
  // later. Any thread, with Python's lock or without.
  ~CompletionHook();
  CompletionHook(const CompletionHook&) = delete;
  CompletionHook& operator=(const CompletionHook&) = delete;

  void note(Call call);
  // Of all groups, but not for ever: once note_end_of_python() keeps others from beginning. Without Python's lock.
  static void await_those_under_way() noexcept;

  // Until the hook has been called for all that has been noted by now. Throws ValueError in the hook itself, which
  // would wait for its own end.
  void drain();

 private:
  struct State;

  // Or until interrupts are pending.
  void await_told() noexcept;
  bool is_own_thread() const noexcept { return std::this_thread::get_id() == thread_id_; }
  // In a fork there is no thread.
  bool has_thread() const noexcept { return born_after_ == num_forks(); }

  const std::shared_ptr<State> state_;  // shared with the thread, which may outlive this
  const uint32_t born_after_ = num_forks();
  std::thread::id thread_id_;
};

}  // namespace axon::c10d_backend
