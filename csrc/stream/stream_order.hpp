// Puts the kernels of a group in one order, whatever streams they are launched on, and remembers these streams.
//
//   AXON_TRY(order.follow(stream));   // what is launched on it now runs after what was launched before
#pragma once

#include <optional>
#include <vector>

#include "base/status.hpp"
#include "cuda/stream.hpp"

namespace axon {

// Needs a lock around it.
class StreamOrder {
 public:
  explicit StreamOrder(Event event) noexcept : event_(std::move(event)) {}

  // For a kernel in the group's order: behind the last one, unless one of the two is captured and the other is not in
  // the same capture. Fails where the stream cannot be asked (the legacy default stream beside a capture).
  Status follow(StreamView stream);
  // For one that its caller has put in order.
  Status note(StreamView stream);

  // Streams that have held kernels, each once.
  const std::vector<StreamView>& streams() const noexcept { return streams_; }
  // Some kernel is part of a graph, which may be launched at any time.
  bool has_captured() const noexcept { return has_captured_; }

 private:
  Result<uint64_t> remember(StreamView stream);

  Event event_;
  std::optional<StreamView> last_;
  std::vector<StreamView> streams_;
  bool has_captured_ = false;
};

}  // namespace axon
