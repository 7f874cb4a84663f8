// A call of a group that a CUDA graph holds. Each launch of the graph triggers it, and the engine runs a copy of the
// captured operation: a replay. One replay runs at a time; the device waits for the one before.
//
//   auto call = std::make_shared<CapturedCall>(trigger_id, group, operation, replay, segments, on_failure);
//   call->trigger();             // progress owner: a launch has reached it
//   call->release();             // any thread: its graph is gone
//
// Kept by Replays (engine/replays.hpp) until it is released, and by itself while it runs.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/group.hpp"
#include "engine/operation.hpp"
#include "engine/triggered.hpp"

namespace axon::engine {

class CapturedCall final : public Triggered, public std::enable_shared_from_this<CapturedCall>, private Submission {
 public:
  using OnFailure = std::function<void(const Status&)>;

  // Copies the specification. `replay` says which of the group's captured calls it is. The segments serve all replays.
  // `on_failure` is called by the thread that drives, without any lock, for the first replay that fails. No other one
  // runs after it.
  CapturedCall(uint32_t trigger_id, std::shared_ptr<Group> group, const OperationSpecification& captured, Replay replay,
               std::shared_ptr<DeviceSegments> segments, OnFailure on_failure);
  ~CapturedCall() = default;
  CapturedCall(const CapturedCall&) = delete;
  CapturedCall& operator=(const CapturedCall&) = delete;

  uint32_t trigger_id() const noexcept override { return trigger_id_; }

  void trigger() noexcept override;
  // Nothing triggers it any more. Launches that have not been read from the ring yet still count.
  void release() noexcept;
  void fail() noexcept override { segments_->fail(); }

 private:
  class Run final : public Operation {
   public:
    explicit Run(CapturedCall& call) noexcept : call_(call) {}
    ~Run() override = default;

   private:
    void on_finished() noexcept override { call_.on_finished(status()); }
    void on_released() noexcept override { call_.on_released(); }

    CapturedCall& call_;
  };

  Operation& prepare_run() noexcept;
  void on_finished(const Status& status) noexcept;
  void on_released() noexcept;

  // Submission: takes it out of the engine's replays.
  void begin() noexcept override;
  void complete() noexcept override {}

  const uint32_t trigger_id_;
  const std::shared_ptr<Group> group_;
  const std::shared_ptr<DeviceSegments> segments_;
  const OnFailure on_failure_;

  std::vector<ConstBuffer> inputs_;
  std::vector<Buffer> outputs_;
  OperationSpecification specification_;  // of the next run

  // Launches that have not ended. Sequentially consistent: the thread that raises it from 0, or lowers it to another
  // number than 0, has the run and what it needs.
  std::atomic<uint32_t> num_pending_{0};
  std::atomic<bool> has_failed_{false};  // sequentially consistent: set before DeviceSegments::fail()
  std::optional<Run> run_;
  std::shared_ptr<CapturedCall> self_;      // while launches are pending
  std::shared_ptr<CapturedCall> released_;  // while it is submitted
};

}  // namespace axon::engine
