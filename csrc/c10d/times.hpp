// When one call of a timed group began and was over: by the host's clock, or between two events of a device.
//
//   times.begin();  …  times.end();                 // on the host
//   times.begin_on(stream);  …  times.end_on(stream);   // of what the stream has in between
//
// One thread begins, one ends; any thread may ask, once both have been told.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <chrono>
#include <optional>

namespace axon::c10d_backend {

class Times {
 public:
  using Clock = std::chrono::steady_clock;

  void begin() noexcept { called_ = Clock::now(); }
  void end() noexcept;
  void begin_on(c10::Stream stream);
  void end_on(c10::Stream stream);

  // For threads that have none of their own, before they ask: torch makes the current one current again.
  void make_device_current() const;
  Clock::time_point called() const noexcept { return called_; }
  bool are_over() const;
  // Blocks until they are; returns when that was, or when it was noticed.
  Clock::time_point await() const;
  // How long the call took, on a device without the time that it waited for its stream. Once they are over.
  std::chrono::duration<float> active() const;

 private:
  struct OnDevice {
    c10::Event begun;
    c10::Event ended;
  };

  Clock::time_point called_;
  Clock::time_point ended_;
  std::atomic<bool> are_over_{false};  // release behind ended_
  std::optional<OnDevice> on_device_;
};

}  // namespace axon::c10d_backend
