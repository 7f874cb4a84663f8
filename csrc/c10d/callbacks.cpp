#include "c10d/callbacks.hpp"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/forks.hpp"
#include "base/log.hpp"

namespace axon::c10d_backend {

namespace {

constexpr std::chrono::seconds kLongestRest{10};

struct Pool {
  std::mutex mutex;  // guards all members below
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;
  size_t num_resting = 0;
};

Pool& pool() {
  static OnePerProcess<Pool> pool;
  return pool.get();
}

void work() {
  pthread_setname_np(pthread_self(), "axon-callbacks");
  std::unique_lock lock(pool().mutex);
  while (true) {
    ++pool().num_resting;
    const bool is_called = pool().changed.wait_for(lock, kLongestRest, [] { return !pool().tasks.empty(); });
    --pool().num_resting;
    if (!is_called) return;
    {
      const std::function<void()> task = std::move(pool().tasks.front());
      pool().tasks.pop_front();
      lock.unlock();
      task();
    }
    lock.lock();
  }
}

}  // namespace

void run_beside_the_engine(std::function<void()> task) {
  const std::lock_guard lock(pool().mutex);
  pool().tasks.push_back(std::move(task));
  pool().changed.notify_one();
  if (pool().tasks.size() <= pool().num_resting) return;
  try {
    std::thread(work).detach();
  } catch (const std::system_error& error) {
    log::info(std::string("cannot start a thread for a future's callbacks, so they wait for a running thread: ") +
              error.what());
  }
}

}  // namespace axon::c10d_backend
