// Puts the kernels of a group in one order, whatever streams they are launched on, and remembers these streams.
//
//   AXON_TRY(order.follow(stream));   // what is launched on it now runs after what was launched before
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "cuda/stream.hpp"

namespace axon::ipc {

// Needs a lock around it.
class StreamOrder {
 public:
  explicit StreamOrder(cuda::Event event) noexcept : event_(std::move(event)) {}

  // For a kernel in the group's order: behind the last one, unless one of the two is captured and the other is not in
  // the same capture. Fails where the stream cannot be asked (the legacy default stream beside a capture).
  Status follow(cuda::StreamView stream);
  // For one that its caller has put in order.
  Status note(cuda::StreamView stream);

  // Streams that have held kernels, each once.
  const std::vector<cuda::StreamView>& streams() const noexcept { return streams_; }
  // Whether graphs hold kernels: they share it.
  std::weak_ptr<void> graphs() const noexcept { return graphs_; }
  // Once nothing more is launched: shared with the graphs that hold kernels, which may be launched as long as they
  // live.
  std::shared_ptr<void> take_graphs() noexcept { return std::move(graphs_); }

 private:
  Result<uint64_t> remember(cuda::StreamView stream);

  cuda::Event event_;
  std::optional<cuda::StreamView> last_;           // outside of captures
  std::optional<cuda::StreamView> last_captured_;  // in the latest
  std::vector<cuda::StreamView> streams_;
  std::shared_ptr<void> graphs_ = std::make_shared<char>();  // beside the graphs: whether there are any
  uint64_t last_capture_ = 0;
};

}  // namespace axon::ipc
