// Shared state and waiting, for code that model checking covers: the types of the standard library by these names.
// tests/model replaces this file by one that runs the code through every interleaving.
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

// Copies to or from memory that other threads access earlier or later, ordered by separate atomics.
inline void copy(void* to, const void* from, size_t num_bytes) noexcept {
  std::memcpy(to, from, num_bytes);
}

// For loops that wait for another thread.
inline void relax() noexcept {
  __builtin_ia32_pause();
}
inline void yield() noexcept {
  sched_yield();
}

}  // namespace axon::sync
