// What threads share and sleep on, for code whose interleavings are checked: the standard's things, by these names.
// tests/model has a file of this name in their place, which runs that code through every interleaving.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace axon::sync {

using std::atomic;
using std::condition_variable;
using std::mutex;
using std::thread;
using Clock = std::chrono::steady_clock;

// In a loop that waits for another thread.
inline void relax() noexcept {
  __builtin_ia32_pause();
}
inline void yield() noexcept {
  sched_yield();
}

}  // namespace axon::sync
