// A group's completion hook: called for each of its calls once that is over, in the order of the calls, by a thread of
// its own. What is captured in a graph is not a call. What the hook throws is logged: nobody is there to catch it.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "c10d/times.hpp"

namespace axon {

class CompletionHook {
 public:
  using Hook = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;

  struct Call {
    c10d::OpType type;
    uint64_t sequence;
    std::shared_ptr<const Times> times;
  };

  // The hook is the caller's, and outlives this.
  explicit CompletionHook(const Hook& hook);
  // Called for all that has been noted first, unless Python ends.
  ~CompletionHook();
  CompletionHook(const CompletionHook&) = delete;
  CompletionHook& operator=(const CompletionHook&) = delete;

  void note(Call call);
  // Of all groups, but not for ever: once note_end_of_python() keeps others from beginning. Without Python's lock.
  static void await_those_under_way() noexcept;

  // Until the hook has been called for all that has been noted.
  void drain();

 private:
  struct State;

  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace axon
