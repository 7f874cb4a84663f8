// Flushes a transport that is layered above another one. It is driven until its own transfers have ended. Then the
// lower transport is flushed for the rest of the timeout.
//
//   flush_layer(*this, *network_, timeout_ms, [&] { return queue_.empty(); });
#pragma once

#include <algorithm>
#include <chrono>

#include "transport/transport.hpp"

namespace axon::transport {

template <typename IsAtRest>
void flush_layer(Transport& layer, Transport& below, int timeout_ms, IsAtRest is_at_rest) noexcept {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!is_at_rest() && Clock::now() < deadline) layer.progress();
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  below.flush(std::max(0, static_cast<int>(left.count())));
}

}  // namespace axon::transport
