// The calls of a group's GPU side that CUDA graphs hold.
#include <algorithm>
#include <mutex>
#include <utility>

#include "c10d/cuda/conversions.hpp"
#include "c10d/cuda_side.hpp"
#include "cuda/capture.hpp"
#include "gpu_comm/relay/captured_slots.hpp"
#include "gpu_comm/relay/relay.hpp"
#include "gpu_comm/relay/trigger_ring.hpp"

namespace axon::c10d_backend {

// Each launch of the graph starts the operation, instead of this call.
void CudaSide::capture_relay(WorkOperation& operation, c10::Stream stream, bool is_single) {
  const uint64_t capture = wake_engine_at_launch(stream);
  std::unique_ptr<gpu_comm::RelayPlan> plan = plan_of(operation);
  const kernels::Trigger trigger = value_of(gpu_comm::next_trigger(communicator_->engine()));
  gpu_comm::RelayCapture captured{.trigger = trigger, .slots = nullptr};
  if (is_single && operation.direction == engine::Direction::kCollective && waits_for_all_slots(*plan)) {
    captured.slots = value_of(captured_slots_->take(capture, view_of(stream), slots_bytes_of(*plan)));
  }
  operation.relay = value_of(gpu_comm::Relay::open(std::move(plan), expired_wait_, captured));
  const auto note_failure = [failures = late_failure_](const Status& failure) {
    failures->note_fault(to_exception(failure));
  };
  check(cuda::keep_with_graph(view_of(stream), value_of(communicator_->capture(operation, captured.trigger.id,
                                                                               operation.relay, note_failure))));
}

// Called with the lock. A graph and the bodies of its conditional nodes are captured in turn.
uint64_t CudaSide::wake_engine_at_launch(c10::Stream capturing) {
  static constexpr size_t kMostCaptures = 16;
  const cuda::StreamView stream = view_of(capturing);
  engine::Engine& engine = communicator_->engine();
  const uint64_t id = value_of(cuda::capture_of(stream));
  auto capture = std::ranges::find(captures_, id, &Capture::id);
  if (capture == captures_.end()) {
    captures_.push_front({.id = id, .can_wake = gpu_comm::can_wake_at_launch(stream, engine)});
    if (captures_.size() > kMostCaptures) captures_.pop_back();
    capture = captures_.begin();
  }
  if (capture->can_wake && capture->waking_streams.insert(stream.get()).second)
    gpu_comm::wake_at_launch(stream, engine);
  return id;
}

void CudaSide::note_captured(c10::Stream stream) {
  const std::lock_guard lock(mutex_);
  wake_engine_at_launch(stream);
}

}  // namespace axon::c10d_backend
