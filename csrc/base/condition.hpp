// Waits for a condition variable without a limit of time.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace axon {

// Does what condition.wait(lock, is_met) does. That function's symbol is of libstdc++ 12, and binaries that use it do
// not load on systems with an older one, such as RHEL 9.
template <typename Predicate>
void await(std::condition_variable& condition, std::unique_lock<std::mutex>& lock, Predicate is_met) {
  while (!condition.wait_for(lock, std::chrono::hours(1), is_met)) {
  }
}

}  // namespace axon
