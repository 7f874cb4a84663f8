// How many rails lead to each peer unless the user sets a number.
#pragma once

#include <algorithm>
#include <cstddef>

namespace axon::transport {

// One rail for this many cores of a process, up to kMostByDefault: the rest computes.
inline constexpr size_t kCoresPerRail = 4;
inline constexpr size_t kMostByDefault = 4;

// Returns the number for each of `num_processes`, at least one, that share `num_cores`. It is never 0: one rail is as
// fast as none (ADR 0043), and its two threads sleep while it is idle.
constexpr size_t num_rails_for(size_t num_cores, size_t num_processes) noexcept {
  return std::clamp(num_cores / (kCoresPerRail * num_processes), size_t{1}, kMostByDefault);
}

}  // namespace axon::transport
