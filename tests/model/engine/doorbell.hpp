// Replaces csrc/engine/doorbell.hpp: the threads that drive sleep on it, without a kernel.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <utility>

#include "scheduler.hpp"

namespace axon::transport {
using PeerId = uint32_t;
}  // namespace axon::transport

namespace axon::engine {

enum class Sleep : uint8_t { kLight, kDeep };

class Doorbell {
 public:
  void ring() noexcept {
    model::point();
    rung_ = true;
  }

  void ring_waiter() noexcept {
    model::point();
    waiter_rung_ = true;
  }

  // The armed transport has an event: its descriptor is readable until the transport is armed again.
  void signal() noexcept { signalled_ = true; }
  void hush() noexcept { signalled_ = false; }

  std::span<const transport::PeerId> sleep(Sleep depth, std::chrono::microseconds at_most) noexcept {
    model::point();
    const auto deadline = model::now() + at_most;
    model::block_until([&] { return rung_ || (depth == Sleep::kDeep && signalled_); }, deadline);
    rung_ = false;
    return {};
  }

  bool block_on_events(std::chrono::microseconds at_most) noexcept {
    model::check(!std::exchange(waiter_blocks_, true), "one waiter blocks at a time");
    model::point();
    model::block_until([this] { return waiter_rung_ || signalled_; }, model::now() + at_most);
    waiter_rung_ = false;
    waiter_blocks_ = false;
    return signalled_;
  }

 private:
  bool rung_ = false;
  bool waiter_rung_ = false;
  bool waiter_blocks_ = false;
  bool signalled_ = false;
};

}  // namespace axon::engine
