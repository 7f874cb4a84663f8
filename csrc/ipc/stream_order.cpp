#include "ipc/stream_order.hpp"

#include <algorithm>
#include <utility>

#include "cuda/capture.hpp"

namespace axon::ipc {

Result<uint64_t> StreamOrder::remember(cuda::StreamView stream) {
  Result<uint64_t> capture = capture_of(stream);
  if (!capture.ok()) return capture;
  if (capture.value() != 0 && std::exchange(last_capture_, capture.value()) != capture.value()) {
    AXON_TRY(keep_with_graph(stream, graphs_));
  }
  const bool known = std::ranges::any_of(streams_, [&](cuda::StreamView other) { return other.get() == stream.get(); });
  if (!known) streams_.push_back(stream);
  return capture;
}

Status StreamOrder::follow(cuda::StreamView stream) {
  Result<uint64_t> capture = remember(stream);
  if (!capture.ok()) return std::move(capture.status());
  const std::optional<cuda::StreamView> last = std::exchange(capture.value() == 0 ? last_ : last_captured_, stream);
  if (!last || last->get() == stream.get()) return Status();
  const Result<uint64_t> capture_of_last = capture_of(*last);
  if (!capture_of_last.ok() || capture_of_last.value() != capture.value()) return Status();
  AXON_TRY(last->record(event_));
  return stream.wait(event_);
}

Status StreamOrder::note(cuda::StreamView stream) {
  Result<uint64_t> capture = remember(stream);
  return capture.ok() ? Status() : std::move(capture.status());
}

}  // namespace axon::ipc
