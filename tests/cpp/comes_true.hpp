// For what other threads bring about.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace axon {

// Waits for it; false long after it should have been.
inline bool comes_true(const std::function<bool()>& condition,
                       std::chrono::nanoseconds within = std::chrono::seconds(30)) {
  const auto deadline = std::chrono::steady_clock::now() + within;
  while (!condition() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  return condition();
}

}  // namespace axon
