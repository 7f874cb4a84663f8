// Progress of the engine: the threads that wait drive it. One token guards the engine; its owner, the progress owner,
// drives everything.
//
//   submitter   takes the token if it is free and posts inline; otherwise the progress owner finds the submission
//   waiter      takes the token and drives until its own operation is finished; if the token is taken, sleeps until it
//               is free. After nothing has moved for a while, it blocks on the transport's event descriptor
//   background  one thread, for operations on which no thread waits. Never competes with a waiter, and is idle while
//               one blocks. Sleeps briefly while traffic is hot, and blocks after it has been quiet for a while. If no
//               other process of this host may send, its brief sleeps also block on the network's events
//
// Lost wake-ups are the risk here. Two rules prevent them:
//   1. a thread that releases the token checks for submissions afterwards, and takes the token again if there are any;
//   2. a sleeper counts itself (sequentially consistent) before it checks its condition, and a thread that changes the
//      condition reads the count afterwards.
//
// Owned by the engine. Methods may be called by any thread unless they say otherwise.
#pragma once

#include <chrono>
#include <span>

#include "base/clock.hpp"
#include "base/sync.hpp"
#include "engine/doorbell.hpp"
#include "engine/pace.hpp"
#include "engine/sleepers.hpp"
#include "engine/submissions.hpp"

namespace axon::engine {

// What the progress owner runs. All methods but complete() are called with the token held.
class Driver {
 public:
  // Runs one round over everything that can move, and returns how many items moved.
  virtual unsigned drive() noexcept = 0;
  // Checks deadlines; called at most every few milliseconds.
  virtual void tick(sync::Clock::time_point now) noexcept = 0;
  virtual bool has_submissions() const noexcept = 0;  // also called without the token
  virtual bool has_running() const noexcept = 0;
  // Returns whether the transport holds sent data, perhaps of finished operations, that moves only while a thread
  // drives.
  virtual bool holds_back() const noexcept = 0;
  // Returns whether something is awaited that only polling shows: a flag in memory that a device writes.
  virtual bool has_flag_waiters() const noexcept = 0;
  // Returns whether an operation on a device's tensors is in progress.
  virtual bool serves_device() const noexcept = 0;
  // Returns whether processes of this host may send: a blocked receiver costs them a system call. It costs network
  // senders nothing.
  virtual bool has_neighbours() const noexcept = 0;
  // Called before sleeping on the transport's event descriptor. Returns false if there is more to drive, or if no event
  // will ever come.
  virtual bool arm() noexcept = 0;
  virtual void on_process_ended(transport::PeerId peer) noexcept = 0;
  // Returns the chain of items to complete; complete() runs them after the token has been released.
  virtual QueueNode* take_completions() noexcept = 0;
  virtual bool has_completions() const noexcept = 0;
  virtual void complete(QueueNode* chain) noexcept = 0;

 protected:
  ~Driver() = default;
};

class Progress {
 public:
  Progress(Driver& driver, Doorbell& doorbell);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Ends the background thread. Afterwards only calling threads drive.
  void stop() noexcept;

  // Drives after a submission, unless another thread holds the token: that one checks for submissions after its
  // release.
  void pump() noexcept {
    pump([] {});
  }
  // Like pump(), for an item that need not be submitted if the token is free: calls `begin`, and drives. Returns false
  // if the token is not free.
  template <typename Begin>
  bool pump(Begin begin) noexcept {
    if (!try_acquire()) return false;
    begin();
    driver_.drive();
    release();
    return true;
  }

  // Returns whether this is the background thread, which must not wait for operations.
  static bool is_background() noexcept;

  // Makes sure that the background thread drives what is running.
  void wake() noexcept;
  // A peer's request has been answered by the engine itself, while no thread of this process waits: the next one
  // probably follows. Progress owner only.
  void note_served() noexcept { is_serving_ = true; }
  // An operation waits for a flag from now on: no thread may stay blocked. Progress owner only.
  void wake_to_look() noexcept;
  // Ends every sleep: something has been submitted, and its submitter does not drive.
  void wake_all() noexcept;

  // Drives, or sleeps while other threads drive, until complete() sets `finished` (returns true), or the deadline has
  // passed (returns false). Blocks after nothing has moved for its spin budget. A follower sleeps at once, and drives
  // only while the background thread is away.
  static constexpr sync::Clock::duration kFollower{-1};
  bool wait(const sync::atomic<bool>& finished, sync::Clock::time_point deadline,
            sync::Clock::duration spin_budget = pace::kSpinBudget) noexcept;

  // Makes all threads that sleep in wait() check their conditions, after code other than complete() has set one.
  void nudge() noexcept {
    for_token_.notify();
    notify_of_end();
  }

  // From now on more processes than cores run here, so waiters sleep soon. Progress owner only.
  void set_oversubscribed() noexcept { oversubscribed_until_ = sync::Clock::time_point::max(); }
  // Ends set_oversubscribed(). Progress owner only.
  void clear_oversubscribed() noexcept { oversubscribed_until_ = {}; }

  // Runs `action` as progress owner. Must not be nested.
  template <typename Action>
  auto exclusively(Action action) {
    acquire();
    struct Release {
      Progress& progress;
      ~Release() { progress.release(); }
    } release{*this};
    return action();
  }

 private:
  enum class Pause : uint8_t { kFinished, kYield, kQuiet, kDeadline };
  enum class Armed : uint8_t { kYes, kMoved, kHeldBack };

  bool try_acquire() noexcept;
  bool spin_to_acquire() noexcept;
  void acquire() noexcept;
  void release() noexcept;
  void release_once() noexcept;
  void notify_of_end() noexcept;
  Pause spin(const sync::atomic<bool>& finished, sync::Clock::time_point deadline,
             sync::Clock::duration spin_budget) noexcept;
  // Runs a round and returns whether something moved, which keeps the background thread busy. The rounds of pump() and
  // release() do not: they begin submissions, and the submitter says whether a thread waits.
  bool drive_and_count() noexcept;
  bool may_block() const noexcept;
  bool is_oversubscribed() noexcept;
  Armed arm() noexcept;
  bool block_on_events(const sync::atomic<bool>& finished, sync::Clock::time_point deadline) noexcept;
  void sleep_beside_driver(const sync::atomic<bool>& finished, sync::Clock::time_point deadline) noexcept;

  void run_in_background() noexcept;
  std::chrono::microseconds drive_in_background() noexcept;
  void sleep(Sleep depth, std::chrono::microseconds at_most) noexcept;
  void write_trace() noexcept;

  Driver& driver_;
  Doorbell& doorbell_;

  sync::atomic<bool> token_{false};               // true: held
  sync::atomic<uint32_t> num_contenders_{0};      // threads in acquire(), to which spinning progress owners yield
  sync::atomic<uint64_t> num_busy_rounds_{0};     // rounds that moved something, by any progress owner
  sync::atomic<bool> deeply_asleep_{false};       // the background thread sleeps on the transport's event descriptor
  sync::atomic<bool> background_blocks_{false};   // the background thread has armed the transport: messages wake it
  sync::atomic<bool> waiter_blocks_{false};       // a thread in wait() has armed the transport instead
  sync::atomic<bool> background_is_away_{false};  // in a callback, or writing the trace, and so does not drive
  sync::atomic<bool> stopping_{false};
  Sleepers for_token_;  // wait for the token's release, or for their operation, which another thread may finish
  Sleepers for_end_;    // wait for their operation, which another thread drives, or until the background thread is away

  // Progress owner only.
  sync::Clock::time_point oversubscribed_until_{};
  sync::Clock::duration oversubscribed_for_ = pace::kShortestOversubscribed;
  bool is_serving_ = false;  // has answered requests of peers lately

  // Background thread only.
  uint64_t seen_busy_rounds_ = 0;
  sync::Clock::time_point busy_at_{};
  sync::Clock::time_point traced_at_{};

  sync::thread thread_;  // last: it starts after all other members are constructed
};

}  // namespace axon::engine
