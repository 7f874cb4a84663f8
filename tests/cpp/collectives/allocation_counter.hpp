// Counts allocations from the heap while it runs, in this thread; the test binary's operator new tells it. What tests
// themselves allocate on the way is left out with Pause.
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

  // Inside a Pause: back to the code under test.
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
