// What the thread of handshakes reports about rails for messages. That thread pushes, the progress owner takes.
//
//   arrivals.push({.kind = RailArrival::Kind::kAccepted, .name = name, .socket = std::move(socket)});
//   if (arrivals.any()) for (RailArrival& arrival : arrivals.take()) …
#pragma once

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "base/event_descriptor.hpp"
#include "base/resources.hpp"
#include "transport/rails/rail_handshakes.hpp"

namespace axon::transport {

struct RailArrival {
  enum class Kind : uint8_t {
    kConnected,
    kAccepted,
    kNotConnected,
    kStranger,
  };

  Kind kind{};
  uint64_t name = 0;    // kAccepted: the other transport's
  RailRequest request;  // kConnected, kNotConnected
  FileDescriptor socket;
  Status why;
};

class RailArrivals {
 public:
  // Strangers cause reports. No more than these wait.
  static constexpr size_t kMostWithStrangers = 1024;

  // Fails without a free file descriptor.
  Status open() {
    event_ = open_event();
    return event_.valid() ? Status() : out_of("eventfd", errno);
  }

  void push(RailArrival arrival) noexcept {
    const std::lock_guard lock(mutex_);
    if (arrival.kind == RailArrival::Kind::kStranger && arrivals_.size() >= kMostWithStrangers) return;
    arrivals_.push_back(std::move(arrival));
    any_.store(true, std::memory_order_release);
    set_event(event_);
  }
  bool any() const noexcept { return any_.load(std::memory_order_acquire); }
  std::vector<RailArrival> take() noexcept {
    const std::lock_guard lock(mutex_);
    clear_event(event_);
    any_.store(false, std::memory_order_relaxed);
    return std::exchange(arrivals_, {});
  }

  // Readable while any() holds.
  const FileDescriptor& event() const noexcept { return event_; }

 private:
  FileDescriptor event_;
  std::mutex mutex_;
  std::vector<RailArrival> arrivals_;  // guarded by mutex_
  std::atomic<bool> any_{false};       // whether arrivals_ has any; release in push(), acquire in any()
};

}  // namespace axon::transport
