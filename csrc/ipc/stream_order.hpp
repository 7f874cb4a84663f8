// Orders the kernels of a group, whatever streams they are launched on, and records these streams.
//
//   AXON_TRY(order.follow(stream));   // later work on this stream runs after the group's earlier kernels
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "cuda/stream.hpp"

namespace axon::ipc {

// The caller must hold a lock.
class StreamOrder {
 public:
  explicit StreamOrder(cuda::Event event) noexcept : event_(std::move(event)) {}

  // Orders a kernel after the group's last one. There is no order if one of the two is captured and the other is not in
  // the same capture. Fails if the stream cannot be queried (the legacy default stream during a capture).
  Status follow(cuda::StreamView stream);
  // Records a kernel that its caller has ordered.
  Status note(cuda::StreamView stream);

  // Streams that have held kernels, each once.
  const std::vector<cuda::StreamView>& streams() const noexcept { return streams_; }
  // Shared by the graphs that hold kernels; it expires when there are none.
  std::weak_ptr<void> graphs() const noexcept { return graphs_; }
  // Call this when nothing more is launched. The result is shared with the graphs that hold kernels; these may be
  // launched as long as they live.
  std::shared_ptr<void> take_graphs() noexcept { return std::move(graphs_); }

 private:
  Result<uint64_t> remember(cuda::StreamView stream);

  cuda::Event event_;
  std::optional<cuda::StreamView> last_;           // outside captures
  std::optional<cuda::StreamView> last_captured_;  // in the latest capture
  std::vector<cuda::StreamView> streams_;
  std::shared_ptr<void> graphs_ = std::make_shared<char>();  // shared with the graphs that hold kernels
  uint64_t last_capture_ = 0;
};

}  // namespace axon::ipc
