// Threads that sleep until something has changed, for whoever changes it: at no cost while nobody sleeps.
//
// A sleeper counts itself before it looks at what it sleeps on, and whoever changes that looks at the count afterwards,
// both sequentially consistent: one of the two sees the other.
#pragma once

#include <mutex>

#include "base/sync.hpp"

namespace axon {

class Sleepers {
 public:
  // After a change: all look again.
  void notify() noexcept {
    if (num_sleepers_.load() == 0) return;
    {
      const std::lock_guard lock(mutex_);  // a sleeper that has looked but does not sleep yet goes first
    }
    changed_.notify_all();
  }

  bool any() const noexcept { return num_sleepers_.load() != 0; }

  template <typename Condition>
  void sleep_until(sync::Clock::time_point deadline, Condition condition) noexcept {
    num_sleepers_.fetch_add(1);
    {
      std::unique_lock lock(mutex_);
      changed_.wait_until(lock, deadline, condition);
    }
    num_sleepers_.fetch_sub(1);
  }

 private:
  sync::atomic<uint32_t> num_sleepers_{0};
  sync::mutex mutex_;  // guards nothing but the sleep itself
  sync::condition_variable changed_;
};

}  // namespace axon
