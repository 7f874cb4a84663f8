// When one call of a timed group began and finished: by the host's clock, or between two events of a device.
//
//   times.begin();            …  times.end();            // on the host
//    times.begin_on(stream);   …  times.end_on(stream);   // the work of the stream in between
//
// One thread begins, one ends. Once both have done so, any thread may read the times.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <chrono>
#include <optional>

namespace axon::c10d_backend {

// How often a thread that waits for a device polls it.
inline constexpr std::chrono::microseconds kLookInterval{100};

class Times {
 public:
  using Clock = std::chrono::steady_clock;

  void begin() noexcept { called_ = Clock::now(); }
  void end() noexcept;
  void begin_on(c10::Stream stream);
  void end_on(c10::Stream stream);

  // For threads without a current device, before they read the times: torch restores the current device.
  void make_device_current() const;
  Clock::time_point called() const noexcept { return called_; }
  // Records that the call has failed. A stream passes the end of a failed call, too. Any thread, before the stream
  // does.
  void note_failure() noexcept { has_failed_.store(true, std::memory_order_release); }
  bool has_failed() const noexcept { return has_failed_.load(std::memory_order_acquire); }
  bool are_over() const;
  // Blocks until the call has finished. Returns when that was, or when it was noticed.
  Clock::time_point await() const;
  // Returns how long the call took. On a device, this excludes the wait for its stream. Valid once the call has
  // finished.
  std::chrono::duration<float> active() const;

 private:
  struct OnDevice {
    c10::Event begun;
    c10::Event ended;
  };

  Clock::time_point called_;
  Clock::time_point ended_;
  std::atomic<bool> are_over_{false};  // released after ended_ is written
  std::atomic<bool> has_failed_{false};
  std::optional<OnDevice> on_device_;
};

}  // namespace axon::c10d_backend
