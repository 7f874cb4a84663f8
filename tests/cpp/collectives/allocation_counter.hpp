// Counts heap allocations of this thread during its lifetime; the test binary's operator new reports them. A Pause
// leaves out the test's own allocations.
#pragma once

#include <cstddef>

namespace axon::collectives {

class AllocationCounter {
 public:
  static void start() noexcept {
    count_ = 0;
    running_ = true;
  }
  static size_t stop() noexcept {
    running_ = false;
    return count_;
  }
  static void on_allocation() noexcept {
    if (running_ && pauses_ == 0) ++count_;
  }

  struct Pause {
    Pause() noexcept { ++pauses_; }
    ~Pause() { --pauses_; }
  };

  // Resumes counting inside a Pause, for the code under test.
  class Resume {
   public:
    Resume() noexcept : pauses_before_(pauses_) { pauses_ = 0; }
    ~Resume() { pauses_ = pauses_before_; }

   private:
    int pauses_before_;
  };

 private:
  static inline thread_local bool running_ = false;
  static inline thread_local int pauses_ = 0;
  static inline thread_local size_t count_ = 0;
};

}  // namespace axon::collectives
