// In place of csrc/comm/doorbell.hpp: what the background thread sleeps on, without a kernel.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <utility>

#include "scheduler.hpp"

namespace axon {

using PeerId = uint32_t;

enum class Sleep : uint8_t { kLight, kDeep };

class Doorbell {
 public:
  void ring() noexcept {
    model::point();
    rung_ = true;
  }

  // The transport has something, and has been armed: its event descriptor is readable.
  void signal() noexcept { signalled_ = true; }

  std::span<const PeerId> sleep(Sleep depth, std::chrono::microseconds at_most) noexcept {
    model::point();
    const auto deadline = model::now() + at_most;
    model::block_until([&] { return rung_ || (depth == Sleep::kDeep && signalled_); }, deadline);
    rung_ = false;
    if (depth == Sleep::kDeep) signalled_ = false;
    return {};
  }

 private:
  bool rung_ = false;
  bool signalled_ = false;
};

}  // namespace axon
