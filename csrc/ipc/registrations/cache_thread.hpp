// Thread that unmaps freed memory and maps memory that peers export.
//
//   CacheThread cache_thread;
//   AXON_TRY(cache_thread.add_task([&] { … return kLive; }));    // called by the thread from now on
//   cache_thread.wake();                                         // something changed: poll often for a while
//
// After a wake-up the thread polls every millisecond for a moment. While another thread waits it polls every ten
// milliseconds. As long as something may change it polls rarely. Otherwise it sleeps until the next wake-up.
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

// Says if something may change without a wake-up, and if another thread waits for it.
enum class Liveliness : uint8_t { kIdle, kLive, kHasty };

class CacheThread {
 public:
  using Clock = std::chrono::steady_clock;
  using Task = std::function<Liveliness()>;

  static constexpr std::chrono::milliseconds kShortPause{1};
  static constexpr std::chrono::milliseconds kHastyPause{10};
  static constexpr std::chrono::milliseconds kLongPause{100};
  static constexpr std::chrono::milliseconds kAlert{20};

  // The instance of the process, which ends before CUDA does.
  static CacheThread& instance();

  explicit CacheThread(const char* thread_name = "axon-cache_thread") noexcept : thread_name_(thread_name) {}
  ~CacheThread();

  // Starts the thread with the first task. Fails with kResourceExhausted where the system starts no more threads. The
  // task is not called then, and may be added again.
  Status add_task(Task task);
  // Any thread may call this. It costs nothing while the cache thread is alert.
  void wake() noexcept;
  // Waits for the running task, but not forever: a CUDA call may wait for an event that no longer happens.
  void stop() noexcept;

  // How long the thread sleeps at this time since the last wake-up; nullopt means until the next one.
  static std::optional<std::chrono::milliseconds> pause_after(Clock::duration since_woken, Liveliness liveliness);

 private:
  void run();
  bool is_over(std::unique_lock<std::mutex>& lock, Liveliness liveliness);

  const char* const thread_name_;
  // Process id that the thread runs in. A forked child inherits everything but the thread, perhaps with the lock taken.
  // Relaxed: a process sees what it or its parent has written.
  std::atomic<int> process_{0};
  std::mutex mutex_;  // guards all members below
  std::condition_variable changed_;
  std::vector<Task> tasks_;
  Clock::time_point woken_at_{};
  bool is_woken_ = false;  // since the thread last looked
  bool is_stopping_ = false;
  bool has_stopped_ = false;
  std::thread thread_;
};

}  // namespace axon::ipc
