#include "rpc/python/cuda/worker_thread.hpp"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <system_error>
#include <utility>

#include "base/condition.hpp"
#include "base/resources.hpp"

namespace axon::rpc_python {

static constexpr std::chrono::seconds kLongestStop{2};

Status WorkerThread::add(Task task) {
  const std::lock_guard lock(mutex_);
  if (is_stopping_) return {ErrorCode::kAborted, "the process exits"};
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([this] { run(); });  // waits for the lock
      process_ = getpid();
    } catch (const std::system_error& failure) {
      return {ErrorCode::kResourceExhausted, describe_thread_failure(name_, failure)};
    }
  }
  tasks_.push_back(std::move(task));
  changed_.notify_all();
  return Status();
}

void WorkerThread::stop() noexcept {
  if (process_ != getpid()) return;
  std::unique_lock lock(mutex_);
  is_stopping_ = true;
  changed_.notify_all();
  if (!thread_.joinable()) return;
  if (!changed_.wait_for(lock, kLongestStop, [this] { return has_stopped_; })) return thread_.detach();
  lock.unlock();
  thread_.join();
}

void WorkerThread::run() {
  pthread_setname_np(pthread_self(), name_);
  std::unique_lock lock(mutex_);
  while (true) {
    await(changed_, lock, [this] { return is_stopping_ || !tasks_.empty(); });
    if (is_stopping_) break;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // without the lock, since it may own memory
    lock.lock();
  }
  has_stopped_ = true;
  changed_.notify_all();
}

}  // namespace axon::rpc_python
