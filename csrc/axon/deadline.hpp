#pragma once

#include <algorithm>
#include <chrono>

#include "base/sync.hpp"

namespace axon::library {

// Limits a time to a year, since adding to a clock may overflow.
inline std::chrono::milliseconds bounded(std::chrono::milliseconds time) noexcept {
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);
  return std::clamp(time, std::chrono::milliseconds::zero(), kLongest);
}

inline sync::Clock::time_point deadline_in(std::chrono::milliseconds time) noexcept {
  return sync::Clock::now() + bounded(time);
}

// Returns at least one millisecond before the deadline, and zero or less after it.
inline std::chrono::milliseconds left_until(sync::Clock::time_point deadline) noexcept {
  return std::chrono::ceil<std::chrono::milliseconds>(deadline - sync::Clock::now());
}

}  // namespace axon::library
