// Waits for a condition that has no flag: a state that the progress owner changes.
#pragma once

#include <algorithm>
#include <chrono>

#include "engine/engine.hpp"

namespace axon::rpc {

// Drives until the condition holds; returns false at the deadline. The condition is polled at intervals. The wait may
// be long, so it spins only briefly.
template <typename Condition>
bool drive_until(engine::Engine& engine, Condition condition, Clock::time_point deadline) noexcept {
  static constexpr std::chrono::milliseconds kLookInterval{2};
  static constexpr std::chrono::microseconds kSpinBudget{100};
  const sync::atomic<bool> never{false};
  bool holds = condition();
  while (!holds && Clock::now() < deadline) {
    engine.wait(never, std::min(deadline, Clock::now() + kLookInterval), kSpinBudget);
    holds = condition();
  }
  return holds;
}

}  // namespace axon::rpc
