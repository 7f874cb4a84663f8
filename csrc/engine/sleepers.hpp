// Threads that sleep until something has changed, for whoever changes it: at no cost while nobody sleeps, and without
// waking those whom the change does not concern, which would cost a system call and a change of threads.
//
// A sleeper counts itself before it looks at what it sleeps on, and whoever changes that looks at the count afterwards,
// both sequentially consistent: one of the two sees the other.
#pragma once

#include <mutex>

#include "base/intrusive_list.hpp"
#include "base/sync.hpp"

namespace axon::engine {

class Sleepers {
 public:
  // After a change: wakes those whose condition holds now.
  void notify() noexcept {
    if (num_sleepers_.load() == 0) return;
    const std::lock_guard lock(mutex_);  // a sleeper that has looked but does not sleep yet goes first
    for (Sleeper* sleeper = sleepers_.front(); sleeper != nullptr; sleeper = sleepers_.next(*sleeper)) {
      if (sleeper->holds(sleeper->condition)) sleeper->changed.notify_all();
    }
  }

  bool any() const noexcept { return num_sleepers_.load() != 0; }

  // The condition is looked at by those who notify, too.
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
  // On its thread's stack.
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
