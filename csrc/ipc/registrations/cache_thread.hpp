// The thread that tends to what changes behind our back: memory that is freed, here and in peers, and memory that peers
// offer.
//
//   CacheThread cache_thread;
//   AXON_TRY(cache_thread.add_task([&] { … return kLive; }));    // called by the thread from now on
//   cache_thread.wake();                           // there is news: it looks often for a while
//
// It looks every millisecond for a moment after it is woken, every tenth while somebody waits, seldom as long as there
// is something that may change, and else sleeps until it is woken again.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/status.hpp"

namespace axon::ipc {

// Whether something may change that nobody wakes the cache thread for, and whether somebody waits for it.
enum class Liveliness : uint8_t { kIdle, kLive, kHasty };

class CacheThread {
 public:
  using Clock = std::chrono::steady_clock;
  using Task = std::function<Liveliness()>;

  static constexpr std::chrono::milliseconds kShortPause{1};
  static constexpr std::chrono::milliseconds kHastyPause{10};
  static constexpr std::chrono::milliseconds kLongPause{100};
  static constexpr std::chrono::milliseconds kAlert{20};

  // The process's own: it ends before CUDA does.
  static CacheThread& instance();

  explicit CacheThread(const char* thread_name = "axon-cache_thread") noexcept : thread_name_(thread_name) {}
  ~CacheThread();

  // Starts the thread with the first one. Fails with kResourceExhausted where the system starts no more threads: the
  // task is not called then, and may be given again.
  Status add_task(Task task);
  // Any thread; costs nothing while it is alert.
  void wake() noexcept;
  // Waits for the task under way, but not for ever: a call of CUDA's may wait for what no longer comes.
  void stop() noexcept;

  // How long it sleeps, so long after it was woken; none: until it is woken.
  static std::optional<std::chrono::milliseconds> pause_after(Clock::duration since_woken, Liveliness liveliness);

 private:
  void run();
  bool is_over(std::unique_lock<std::mutex>& lock, Liveliness liveliness);

  const char* const thread_name_;
  // That the thread runs in: a fork has inherited all but the thread, perhaps with the lock taken. Relaxed: a process
  // sees what it has written itself, or its parent.
  std::atomic<int> process_{0};
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::vector<Task> tasks_;
  Clock::time_point woken_at_{};
  bool is_woken_ = false;  // since it last looked
  bool is_stopping_ = false;
  bool has_stopped_ = false;
  std::thread thread_;
};

}  // namespace axon::ipc
