// A count that threads, the engine and kernels raise, one at a time, and for which each of them can wait. It says that
// something has happened once more: data are ready, or a transfer has finished.
//
//   auto condition = std::make_shared<Condition>(engine);
//   condition->set();                         // a kernel adds to counts().num_set_by_device instead
//   condition->wait(deadline);                // for the next time that no wait has returned yet
//   condition->add(listener);                 // called whenever it has been set
//
// Kernels wake no thread. So while a device is attached, the progress owner polls the condition as it polls for the
// launches of CUDA graphs (engine/replays.hpp).
//
// Shared by its users. Any thread may set and end it and read its state; other methods name the threads that may call
// them.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "base/condition_counts.hpp"
#include "base/intrusive_list.hpp"
#include "base/status.hpp"
#include "base/sync.hpp"
#include "engine/client.hpp"
#include "engine/replays.hpp"

namespace axon::engine {

class Engine;

// Progress owner only.
class ConditionListener : public ListNode<ConditionListener> {
 public:
  // The condition has been set, perhaps several times.
  virtual void on_set() noexcept = 0;

 protected:
  ~ConditionListener() = default;
};

class Condition final : public std::enable_shared_from_this<Condition>, private Submission, private Replays::Source {
 public:
  explicit Condition(Engine& engine);
  Condition(const Condition&) = delete;
  Condition& operator=(const Condition&) = delete;

  Engine& engine() const noexcept { return engine_; }
  ConditionCounts& counts() const noexcept { return *counts_; }

  // Whatever the caller has written before is visible to all that wait.
  void set() noexcept;
  // It is not set any more, for this reason: all waits end. The first reason is kept.
  void end(Status why) noexcept;
  // Returns how often it has been set; the count wraps around.
  uint32_t num_set() const noexcept;
  // Returns how much more often than `count` that is. A device may store its counts out of order for a moment.
  uint32_t num_set_beyond(uint32_t count) const noexcept;
  // Fails after the end, and after a kernel has waited for too long.
  Status status() const;
  bool has_ended() const noexcept;
  // Drives until it has been set once more than waits have returned true. Returns false at the deadline, and after the
  // end. One thread at a time, and not the progress owner.
  bool wait(sync::Clock::time_point deadline) noexcept;

  // While a device is attached, its kernels may set the condition. Not for the progress owner.
  void attach_device() noexcept;
  void detach_device() noexcept;

  // Progress owner only, as is unlinking a listener.
  void add(ConditionListener& listener) noexcept { listeners_.push_back(listener); }

 private:
  struct Free {
    void operator()(ConditionCounts* counts) const noexcept { std::free(counts); }
  };

  // Returns the count and whether it has ended, in one number.
  uint64_t news() const noexcept;
  // Tells the listeners, and the thread that waits, once the progress owner comes to it.
  void announce() noexcept;

  // Submission
  void begin() noexcept override;
  void complete() noexcept override;
  // Replays::Source
  bool take() noexcept override;
  Next next() const noexcept override;
  void on_shut_down() noexcept override;

  Engine& engine_;
  const std::unique_ptr<ConditionCounts, Free> counts_;
  IntrusiveList<ConditionListener> listeners_;
  uint32_t num_taken_ = 0;  // of the device's; progress owner only
  uint32_t num_waited_ = 0;
  // The thread that sets it to true may submit this, which holds a share of itself until complete().
  std::atomic<bool> is_announced_{false};
  std::shared_ptr<Condition> announced_;
  std::atomic<uint64_t> announced_news_{0};  // what the listeners know
  sync::atomic<bool> has_changed_{false};    // since the waiting thread has looked
  mutable std::mutex mutex_;
  Status reason_;  // guarded by mutex_
};

}  // namespace axon::engine
