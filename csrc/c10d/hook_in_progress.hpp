// Counts the threads that are in hooks of the user or of torch, so that the exit of Python can wait for them. Torch's
// flight recorder writes files in such a hook, and would use what the exit destroys.
#pragma once

namespace axon::c10d_backend {

// On the stack of a thread that is about to call a hook. Any thread.
class HookInProgress {
 public:
  HookInProgress() noexcept;
  ~HookInProgress();
  HookInProgress(const HookInProgress&) = delete;
  HookInProgress& operator=(const HookInProgress&) = delete;

  // Returns whether the hook may be called: Python goes on.
  bool may_call() const noexcept;

  // Waits for the hooks of all groups, at most two seconds. python::note_end_of_python() must have kept others from
  // beginning. Without the GIL.
  static void await_all() noexcept;
};

}  // namespace axon::c10d_backend
