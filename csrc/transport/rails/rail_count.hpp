// How many rails lead to each peer unless the user sets a number.
#pragma once

#include <algorithm>
#include <cstddef>

namespace axon::transport {

// One rail for this many cores of a process, up to kMostByDefault: the rest computes.
inline constexpr size_t kCoresPerRail = 4;
inline constexpr size_t kMostByDefault = 4;

// Returns whether the threads of each of `num_processes`, at least one, that share `num_cores` have cores of their own.
constexpr bool has_cores_for_rails(size_t num_cores, size_t num_processes) noexcept {
  return num_cores >= kCoresPerRail * num_processes;
}

// Returns the number for each process. It is never 0: the one rail of processes without cores for it carries long
// messages over slow links, and compresses them. Connections that the kernel paces (bbr) leave cores idle, so two of
// them are faster than one.
constexpr size_t num_rails_for(size_t num_cores, size_t num_processes, bool are_paced) noexcept {
  const size_t least = are_paced ? std::clamp(num_cores / num_processes, size_t{1}, size_t{2}) : size_t{1};
  return std::clamp(num_cores / (kCoresPerRail * num_processes), least, kMostByDefault);
}

}  // namespace axon::transport
