// A lock whose holder waits for other processes. A thread that wants it may wait long, so it checks for interrupts
// meanwhile, and gives up at its deadline. Any thread.
//
//   Result<InterruptibleMutex::Held> held = mutex_.lock_until(deadline);
//   if (!held.ok()) return std::move(held.status());
//
// Signal handlers run while the holder's own thread waits. A handler that wants the lock again gets an error, since it
// would wait for itself.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "base/interrupts.hpp"

namespace axon {

class InterruptibleMutex {
  struct Unlock {
    void operator()(InterruptibleMutex* held) const noexcept { held->unlock(); }
  };

 public:
  using Held = std::unique_ptr<InterruptibleMutex, Unlock>;

  // Fails with kTimeout at the deadline, with kCancelled if interrupts are pending, and with kInvalidArgument if the
  // calling thread holds the lock.
  Result<Held> lock_until(sync::Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    if (holder_ == std::this_thread::get_id()) {
      return Status(ErrorCode::kInvalidArgument,
                    "a signal handler has made a call that would wait for the call that it interrupted");
    }
    const auto is_free = [this] { return holder_ == std::thread::id(); };
    while (!freed_.wait_until(lock, interrupts::next_look(deadline), is_free)) {
      lock.unlock();  // a signal handler may run
      if (interrupts::are_pending()) return interrupts::interrupted();
      lock.lock();
      if (sync::Clock::now() >= deadline && !is_free()) {
        return Status(ErrorCode::kTimeout, "Timed out: another thread of this process still waits for other processes");
      }
    }
    holder_ = std::this_thread::get_id();
    return Held(this);
  }

 private:
  void unlock() noexcept {
    {
      const std::lock_guard lock(mutex_);
      holder_ = {};
    }
    freed_.notify_one();
  }

  std::mutex mutex_;
  std::condition_variable freed_;
  std::thread::id holder_;  // default value: the lock is free; guarded by mutex_
};

}  // namespace axon
