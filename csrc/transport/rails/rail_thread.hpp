// A thread that sleeps in an epoll set until something arrives, another thread wakes it, or a time comes. All signals
// are blocked in it.
//
//   class Reader final : private RailThread { … };    // its destructor calls stop()
//   AXON_TRY(start("axon-rail-in"));
//   wake();                                           // any thread; on_wake() follows
//   stop();                                           // returns once the thread has left; its calls never block
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "base/file_descriptor.hpp"
#include "base/forks.hpp"
#include "base/status.hpp"

namespace axon::transport {

class RailThread {
 public:
  RailThread(const RailThread&) = delete;
  RailThread& operator=(const RailThread&) = delete;

  // The name has at most 15 characters.
  Status start(const char* name);
  // In a forked child, which lacks the thread, it only forgets it. Idempotent.
  void stop() noexcept;
  void wake() noexcept;

 protected:
  RailThread() noexcept = default;
  ~RailThread() = default;

  // Calls on the thread. on_event() may free only the object that it is called for, after unwatch().
  virtual void on_wake() noexcept = 0;
  virtual void on_event(void* watched, uint32_t events) noexcept = 0;
  // Runs after all others of a round. Returns for how many milliseconds to sleep at most; −1: until an event.
  virtual int on_round() noexcept = 0;

  // For the thread, or before start(). `events` as of epoll_ctl(2).
  Status watch(const FileDescriptor& descriptor, uint32_t events, void* watched) noexcept;
  void change(const FileDescriptor& descriptor, uint32_t events, void* watched) noexcept;
  // Called before the descriptor is closed: a child of fork() may hold a copy, which would keep it in the epoll set.
  void unwatch(const FileDescriptor& descriptor) noexcept;

 private:
  void run(const char* name) noexcept;
  void run_round(int timeout_ms) noexcept;

  FileDescriptor epoll_set_;
  FileDescriptor wake_event_;
  std::atomic<bool> is_woken_{false};  // seq_cst: wake() after a change, cleared before the thread looks
  std::atomic<bool> stopping_{false};
  uint32_t born_after_ = 0;  // forks
  std::thread thread_;
};

}  // namespace axon::transport
