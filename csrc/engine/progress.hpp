// Who moves the data: whoever waits. One token guards the engine; its owner drives everything.
//
//   submitter   takes the token if it is free and posts inline; else the progress owner finds the submission
//   waiter      takes the token and drives until its own operation is finished; cannot get it: sleeps until it can.
//               Once nothing has moved for a while it blocks: sleeps in the transport's event descriptor
//   background  one thread, for what nobody waits for. Never competes with a waiter, and is idle while one blocks;
//               sleeps while traffic is hot, and blocks once it has been quiet for a while; to the network, if nobody
//               else sends, in its sleeps, too
//
// Lost wake-ups are the risk here. Two rules prevent them:
//   1. whoever releases the token looks for submissions afterwards, and takes it again if there are any;
//   2. a sleeper counts itself (sequentially consistent) before it looks at what it sleeps on, and whoever changes that
//      looks at the count afterwards.
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

// What the progress owner does. All but complete() are called with the token held.
class Driver {
 public:
  // One round over everything that can move; returns how much did.
  virtual unsigned drive() noexcept = 0;
  // Looks after deadlines; called every few milliseconds at the most.
  virtual void tick(sync::Clock::time_point now) noexcept = 0;
  virtual bool has_submissions() const noexcept = 0;  // without the token, too
  virtual bool has_running() const noexcept = 0;
  // Something that was sent, by operations that may be over, moves only while somebody drives.
  virtual bool holds_back() const noexcept = 0;
  // Something is awaited that can only be seen by looking: a flag in memory that a device writes.
  virtual bool has_flag_waiters() const noexcept = 0;
  // Processes of this host may send, which costs them a system call where one blocks. The network's costs nobody.
  virtual bool has_neighbours() const noexcept = 0;
  // Before sleeping in the transport's event descriptor. False: there is more to drive, or nothing ever will be.
  virtual bool arm() noexcept = 0;
  virtual void on_process_ended(transport::PeerId peer) noexcept = 0;
  // The chain of those to be told; complete() tells them, after the token has been released.
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

  // Ends the background thread. Nothing moves by itself afterwards.
  void stop() noexcept;

  // After a submission: drives it, unless somebody else holds the token, who looks for submissions once it is released.
  void pump() noexcept {
    pump([] {});
  }
  // The same, of something that need not be submitted where the token is free: begins it, and drives. False: it is not.
  template <typename Begin>
  bool pump(Begin begin) noexcept {
    if (!try_acquire()) return false;
    begin();
    driver_.drive();
    release();
    return true;
  }

  // Whether this is the background thread, which must not wait for operations.
  static bool is_background() noexcept;

  // Makes sure that the background thread looks after what is running.
  void wake() noexcept;
  // Something waits for a flag from now on: nobody may go on blocking. Progress owner only.
  void wake_to_look() noexcept;

  // Drives, or sleeps while others drive, until `finished`, which complete() sets (true), or the deadline (false).
  // Blocks once nothing has moved for as long as its spin budget; a follower sleeps at once, and drives only while
  // the background thread is away.
  static constexpr sync::Clock::duration kFollower{-1};
  bool wait(const sync::atomic<bool>& finished, sync::Clock::time_point deadline,
            sync::Clock::duration spin_budget = pace::kSpinBudget) noexcept;

  // Lets all who sleep in wait() look at what they wait for, which somebody else than complete() has set.
  void nudge() noexcept {
    for_token_.notify();
    notify_of_end();
  }

  // From now on there are more processes here than cores: whoever waits sleeps soon. Progress owner only.
  void set_oversubscribed() noexcept { oversubscribed_until_ = sync::Clock::time_point::max(); }
  // And no longer. Progress owner only.
  void clear_oversubscribed() noexcept { oversubscribed_until_ = {}; }

  // Runs `action` as progress owner. Not from inside another one.
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
  // A round that keeps the background thread busy if something has moved, which is returned. Those of pump() and
  // release() do not: they begin what has been submitted, and who submits says whether somebody waits.
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
  sync::atomic<uint32_t> num_contenders_{0};      // threads in acquire(): progress owners that only spin yield
  sync::atomic<uint64_t> num_busy_rounds_{0};     // rounds that moved something, by any progress owner
  sync::atomic<bool> deeply_asleep_{false};       // the background thread, in the transport's event descriptor
  sync::atomic<bool> background_blocks_{false};   // the background thread, to the transport: what comes wakes it
  sync::atomic<bool> waiter_blocks_{false};       // one of those in wait(), in its place
  sync::atomic<bool> background_is_away_{false};  // in a callback, or at the trace's file, and so does not drive
  sync::atomic<bool> stopping_{false};
  Sleepers for_token_;  // until it is released; or their operation is finished, which somebody else may do
  Sleepers for_end_;    // of their operation, which another waiter or the background thread drives; or until it cannot

  // Progress owner only.
  sync::Clock::time_point oversubscribed_until_{};
  sync::Clock::duration oversubscribed_for_ = pace::kShortestOversubscribed;

  // Background thread only.
  uint64_t seen_busy_rounds_ = 0;
  sync::Clock::time_point busy_at_{};
  sync::Clock::time_point traced_at_{};

  sync::thread thread_;  // last: starts when all else is there
};

}  // namespace axon::engine
