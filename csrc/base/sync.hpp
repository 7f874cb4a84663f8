// What threads share and sleep on, for code whose interleavings are checked: the standard's things, by these names.
// tests/model has a file of this name in their place, which runs that code through every interleaving.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <thread>

namespace axon::sync {

using std::atomic;
using std::condition_variable;
using std::mutex;
using std::thread;
using Clock = std::chrono::steady_clock;

// To or from memory that others write or read before or after, as atomics beside it say.
inline void copy(void* to, const void* from, size_t num_bytes) noexcept {
  std::memcpy(to, from, num_bytes);
}

// In a loop that waits for another thread.
inline void relax() noexcept {
  __builtin_ia32_pause();
}
inline void yield() noexcept {
  sched_yield();
}

}  // namespace axon::sync
