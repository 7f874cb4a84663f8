// Threads that sleep until a condition changes. notify() is cheap while none sleep, and wakes only threads whose
// condition holds: another wake-up would cost a system call and a context switch.
//
// A sleeper counts itself before it checks its condition, and a thread that changes the condition reads the count
// afterwards, both sequentially consistent. So one of the two sees the other.
//
//   sleepers.sleep_until(deadline, [&] { return flag.load(); });   // any thread
//   flag.store(true);
//   sleepers.notify();                                             // any thread
#pragma once

#include <mutex>

#include "base/intrusive_list.hpp"
#include "base/sync.hpp"

namespace axon::engine {

class Sleepers {
 public:
  // Call it after a change: wakes the threads whose condition holds now.
  void notify() noexcept {
    if (num_sleepers_.load() == 0) return;
    const std::lock_guard lock(mutex_);  // a sleeper that has checked but does not sleep yet goes first
    for (Sleeper* sleeper = sleepers_.front(); sleeper != nullptr; sleeper = sleepers_.next(*sleeper)) {
      if (sleeper->holds(sleeper->condition)) sleeper->changed.notify_all();
    }
  }

  bool any() const noexcept { return num_sleepers_.load() != 0; }

  // Threads that call notify() evaluate the condition, too.
  template <typename Condition>
  void sleep_until(sync::Clock::time_point deadline, Condition condition) noexcept {
    num_sleepers_.fetch_add(1);
    {
      std::unique_lock lock(mutex_);
      Sleeper self;
      self.condition = &condition;
      self.holds = [](void* looked_at) { return (*static_cast<Condition*>(looked_at))(); };
      sleepers_.push_back(self);
      self.changed.wait_until(lock, deadline, condition);
      self.unlink();
    }
    num_sleepers_.fetch_sub(1);
  }

 private:
  // Lives on its thread's stack.
  struct Sleeper : ListNode<Sleeper> {
    void* condition = nullptr;
    bool (*holds)(void* condition) = nullptr;
    sync::condition_variable changed;
  };

  sync::atomic<uint32_t> num_sleepers_{0};
  sync::mutex mutex_;  // guards the list
  IntrusiveList<Sleeper> sleepers_;
};

}  // namespace axon::engine
