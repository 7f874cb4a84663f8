// Replaces csrc/base/sync.hpp: shared state of the threads of a program that model::explore runs. Sequentially
// consistent, whatever memory order is requested.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <utility>

#include "scheduler.hpp"

namespace axon::sync {

template <typename T>
class atomic {
 public:
  static constexpr bool is_always_lock_free = true;

  atomic(T value = T()) noexcept : value_(value) {}
  atomic(const atomic&) = delete;
  atomic& operator=(const atomic&) = delete;

  // For conditions of model::block_until, which are not decision points.
  T peek() const noexcept { return value_; }

  T load(std::memory_order = {}) const noexcept {
    model::point();
    return value_;
  }
  void store(T value, std::memory_order = {}) noexcept {
    model::point();
    value_ = value;
  }
  T exchange(T value, std::memory_order = {}) noexcept {
    model::point();
    return std::exchange(value_, value);
  }
  T fetch_add(T value, std::memory_order = {}) noexcept {
    model::point();
    return std::exchange(value_, static_cast<T>(value_ + value));
  }
  T fetch_sub(T value, std::memory_order = {}) noexcept {
    model::point();
    return std::exchange(value_, static_cast<T>(value_ - value));
  }
  bool compare_exchange_weak(T& expected, T value, std::memory_order = {}) noexcept {
    model::point();
    if (value_ != expected) {
      expected = value_;
      return false;
    }
    value_ = value;
    return true;
  }

 private:
  T value_;
};

class mutex {
 public:
  void lock() {
    model::point();
    model::block_until([this] { return !locked_; }, model::kNever);
    locked_ = true;
  }
  void unlock() {
    locked_ = false;
    model::point();
  }

 private:
  friend class condition_variable;
  bool locked_ = false;
};

struct Clock {
  using duration = model::Duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<Clock>;
  static constexpr bool is_steady = true;
  static time_point now() noexcept { return time_point(model::now()); }
};

class condition_variable {
 public:
  void notify_all() noexcept {
    model::point();
    ++num_notifications_;
  }

  template <typename Condition>
  bool wait_until(std::unique_lock<mutex>& lock, Clock::time_point deadline, Condition condition) {
    while (!condition()) {
      model::point();  // the last point before it sleeps
      const uint64_t seen = num_notifications_;
      lock.mutex()->locked_ = false;
      const bool notified = model::block_until([&] { return num_notifications_ != seen; }, deadline.time_since_epoch());
      lock.mutex()->lock();
      if (!notified) return condition();
    }
    return true;
  }

 private:
  uint64_t num_notifications_ = 0;
};

class thread {
 public:
  thread() noexcept = default;
  template <typename Body>
  explicit thread(Body body) : id_(model::spawn(std::move(body))) {}
  bool joinable() const noexcept { return id_ >= 0; }
  void join() { model::join(std::exchange(id_, -1)); }

 private:
  int id_ = -1;
};

// Other threads may run before it and halfway through it.
inline void copy(void* to, const void* from, size_t num_bytes) noexcept {
  const size_t half = num_bytes / 2;
  model::point();
  std::memcpy(to, from, half);
  model::point();
  std::memcpy(static_cast<std::byte*>(to) + half, static_cast<const std::byte*>(from) + half, num_bytes - half);
}

inline void relax() noexcept {
  model::yield();
}
inline void yield() noexcept {
  model::yield();
}

}  // namespace axon::sync
