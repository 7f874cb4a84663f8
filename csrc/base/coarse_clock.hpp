// A clock that takes a few nanoseconds to read and lags by some milliseconds.
#pragma once

#include <time.h>

#include <chrono>

namespace axon {

inline std::chrono::milliseconds coarse_now() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return std::chrono::milliseconds(now.tv_sec * 1000 + now.tv_nsec / 1'000'000);
}

}  // namespace axon
