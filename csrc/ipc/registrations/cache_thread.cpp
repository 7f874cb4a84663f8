#include "ipc/registrations/cache_thread.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/condition.hpp"
#include "base/resources.hpp"

namespace axon::ipc {

static constexpr std::chrono::seconds kLongestStop{2};

// Never destroyed, since the thread may be stuck when the process exits. CUDA registered its exit handlers when it was
// first called, before the first task, so they run after stop(). A destructor is used since std::atexit() within the
// extension registers nothing (c10d/cuda/exit.cpp).
CacheThread& CacheThread::instance() {
  struct StopAtExit {
    CacheThread* const cache_thread = new CacheThread("axon-ipc-cache");
    ~StopAtExit() { cache_thread->stop(); }
  };
  static const StopAtExit made;
  return *made.cache_thread;
}

CacheThread::~CacheThread() {
  stop();
}

Status CacheThread::add_task(Task task) {
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable() && !is_stopping_) {
    process_.store(getpid(), std::memory_order_relaxed);
    try {
      thread_ = std::thread([this] { run(); });  // waits for the lock
    } catch (const std::system_error& failure) {
      return {ErrorCode::kResourceExhausted, describe_thread_failure(thread_name_, failure)};
    }
  }
  tasks_.push_back(std::move(task));
  is_woken_ = true;
  changed_.notify_all();
  return Status();
}

void CacheThread::wake() noexcept {
  const std::lock_guard lock(mutex_);
  is_woken_ = true;
  changed_.notify_all();
}

void CacheThread::stop() noexcept {
  if (process_.load(std::memory_order_relaxed) != getpid()) return;
  std::unique_lock lock(mutex_);
  is_stopping_ = true;
  changed_.notify_all();
  if (!thread_.joinable()) return;
  if (!changed_.wait_for(lock, kLongestStop, [this] { return has_stopped_; })) return thread_.detach();
  lock.unlock();
  thread_.join();
}

std::optional<std::chrono::milliseconds> CacheThread::pause_after(Clock::duration since_woken, Liveliness liveliness) {
  if (since_woken < kAlert) return kShortPause;
  if (liveliness == Liveliness::kHasty) return kHastyPause;
  if (liveliness == Liveliness::kLive) return kLongPause;
  return std::nullopt;
}

void CacheThread::run() {
  pthread_setname_np(pthread_self(), thread_name_);
  std::unique_lock lock(mutex_);
  Liveliness liveliness = Liveliness::kIdle;
  do {
    const std::vector<Task> tasks = tasks_;
    lock.unlock();
    liveliness = Liveliness::kIdle;
    for (const Task& task : tasks) {
      liveliness = std::max(liveliness, task());
    }
    lock.lock();
  } while (!is_over(lock, liveliness));
  has_stopped_ = true;
  changed_.notify_all();
}

// Sleeps until there is work, and returns whether the thread must stop.
bool CacheThread::is_over(std::unique_lock<std::mutex>& lock, Liveliness liveliness) {
  const auto is_called = [this] { return is_woken_ || is_stopping_; };
  if (!is_called()) {
    const auto pause = pause_after(Clock::now() - woken_at_, liveliness);
    if (pause) {
      changed_.wait_for(lock, *pause, is_called);
    } else {
      await(changed_, lock, is_called);
    }
  }
  if (std::exchange(is_woken_, false)) woken_at_ = Clock::now();
  return is_stopping_;
}

}  // namespace axon::ipc
