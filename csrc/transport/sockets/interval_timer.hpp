// A timer that makes a descriptor readable again and again while it is on, for an epoll set.
//
//   AXON_TRY(timer.open());
//   timer.start(std::chrono::seconds(1));
//   timer.clear();                          // once its descriptor was readable
#pragma once

#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <utility>

#include "base/file_descriptor.hpp"
#include "base/resources.hpp"

namespace axon::transport {

class IntervalTimer {
 public:
  Status open() {
    descriptor_ = FileDescriptor(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    return descriptor_.valid() ? Status() : out_of("timerfd_create", errno);
  }
  const FileDescriptor& descriptor() const noexcept { return descriptor_; }

  bool is_on() const noexcept { return is_on_; }
  // Does nothing if it is on.
  void start(std::chrono::seconds interval) noexcept {
    const itimerspec every{.it_interval = {.tv_sec = interval.count(), .tv_nsec = 0},
                           .it_value = {.tv_sec = interval.count(), .tv_nsec = 0}};
    if (!std::exchange(is_on_, true)) timerfd_settime(descriptor_.get(), 0, &every, nullptr);
  }
  void stop() noexcept {
    const itimerspec never{};
    is_on_ = false;
    timerfd_settime(descriptor_.get(), 0, &never, nullptr);
  }
  void clear() noexcept {
    uint64_t num_ticks = 0;
    [[maybe_unused]] const ssize_t num_read = ::read(descriptor_.get(), &num_ticks, sizeof num_ticks);
  }

 private:
  FileDescriptor descriptor_;
  bool is_on_ = false;
};

}  // namespace axon::transport
