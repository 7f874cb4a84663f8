#include "engine/captured_call.hpp"

#include <utility>

#include "engine/engine.hpp"

namespace axon::engine {

CapturedCall::CapturedCall(uint32_t trigger_id, std::shared_ptr<Group> group, const OperationSpecification& captured,
                           Replay replay, std::shared_ptr<DeviceSegments> segments, OnFailure on_failure)
    : trigger_id_(trigger_id),
      group_(std::move(group)),
      segments_(std::move(segments)),
      on_failure_(std::move(on_failure)),
      inputs_(captured.arguments.inputs.begin(), captured.arguments.inputs.end()),
      outputs_(captured.arguments.outputs.begin(), captured.arguments.outputs.end()),
      specification_(captured) {
  specification_.arguments.inputs = inputs_;
  specification_.arguments.outputs = outputs_;
  specification_.replay = replay;
  specification_.device_segments = segments_.get();
}

Operation& CapturedCall::prepare_run() noexcept {
  Run& run = run_.emplace(*this);
  ++specification_.replay.launch;
  static_cast<OperationSpecification&>(run) = specification_;
  run.join(*group_);
  return run;
}

void CapturedCall::trigger() noexcept {
  if (has_failed_.load() || num_pending_.fetch_add(1) != 0) return;
  self_ = shared_from_this();
  group_->begin(prepare_run());
}

// Called before the device sees the failure: a launch that sees it must not run.
void CapturedCall::on_finished(const Status& status) noexcept {
  if (status.ok()) return;
  has_failed_.store(true);
  on_failure_(status);
}

// The run's last access. The next launch may be waiting.
void CapturedCall::on_released() noexcept {
  run_.reset();
  std::shared_ptr<CapturedCall> self = std::move(self_);
  const bool has_next = num_pending_.fetch_sub(1) > 1;
  if (!has_next || has_failed_.load()) return;
  self_ = std::move(self);
  group_->engine().submit(prepare_run());
}

void CapturedCall::release() noexcept {
  Engine& engine = group_->engine();
  if (engine.is_forked() || engine.has_ended()) return;
  released_ = shared_from_this();
  engine.submit_to_drivers(*this);
}

void CapturedCall::begin() noexcept {
  const std::shared_ptr<CapturedCall> self = std::move(released_);
  Replays& replays = group_->engine().replays();
  replays.read();
  replays.forget(*this);
}

}  // namespace axon::engine
