// Passes the device memory of an operation through host memory, where no kernel reaches the other ranks' GPUs. The host
// engine runs the operation there, segment by segment (engine/device_segments.hpp).
//
//   auto relay = Relay::open(direct_plan(operation, rank, num_ranks), expired);
//   operation.device_segments = relay.value().get();
//   communicator.start(operation);
//   AXON_TRY(relay->enqueue(stream));   // the stream waits for the engine, segment by segment
//
// A call with several operations starts all of them before a stream waits for any, and enqueues them in turn. So none
// of them has to end before another one can go on:
//
//   for (auto& relay : relays) AXON_TRY(relay->enqueue_first(stream_of(relay)));
//   while (…) for (auto& relay : relays) AXON_TRY(relay->enqueue_next(stream_of(relay)));
//
// Kernels copy between the tensors and a few slots of pinned memory. So a long tensor needs no more memory than a short
// one, and is copied while other parts of it travel. No host thread waits for a stream. A stream waits for the engine,
// whose operations always end, and for the kernels of a plan.
//
// Owns its pinned memory until destroyed. Not thread-safe, but the engine uses its part from any thread that drives.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "engine/device_segments.hpp"
#include "gpu_comm/pinned_pool.hpp"
#include "gpu_comm/relay/plan.hpp"

namespace axon::gpu_comm {

// Says whether a stream has given up waiting for the engine, so that results are missing. Shared by the Relays of a
// group.
class ExpiredWait {
 public:
  static Result<std::shared_ptr<const ExpiredWait>> open();
  bool has_occurred() const noexcept { return flag().load(std::memory_order_acquire) != 0; }
  std::atomic<uint32_t>& flag() const noexcept;

 private:
  explicit ExpiredWait(std::shared_ptr<PinnedBlock> memory) noexcept : memory_(std::move(memory)) {}

  const std::shared_ptr<PinnedBlock> memory_;
};

// The trigger and the slots of a relay that a CUDA graph captures.
struct RelayCapture {
  kernels::Trigger trigger{};
  std::shared_ptr<PinnedBlock> slots;  // shared with other relays of the graph; null: slots of its own
};

class Relay final : public engine::DeviceSegments {
 public:
  // Takes pinned memory of the current device for its slots. With a trigger, the relay is enqueued once, into a graph,
  // and serves all of its launches.
  static Result<std::shared_ptr<Relay>> open(std::unique_ptr<RelayPlan> plan,
                                             std::shared_ptr<const ExpiredWait> expired,
                                             const RelayCapture& capture = {});
  // The engine must have released the relay before (Operation::on_released).
  ~Relay() = default;
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  Status enqueue(cuda::StreamView stream);
  // Fills the first slots.
  Status enqueue_first(cuda::StreamView stream);
  // Takes the results of the next segment from its slot, and fills the slot again. Returns whether there are more.
  Result<bool> enqueue_next(cuda::StreamView stream);

  size_t count() const noexcept override { return plan_->num_segments(); }
  size_t num_slots() const noexcept override { return num_slots_; }
  Buffers buffers(size_t segment) noexcept override;
  const std::atomic<uint32_t>& turn(size_t slot) const noexcept override { return header().slots[slot].turn; }
  void give_back(size_t segment) noexcept override;
  void fail() noexcept override;

 private:
  // At the front of the pinned memory. As kernels::SlotState.
  struct Header {
    struct alignas(8) Slot {
      std::atomic<uint32_t> turn{kDevicesTurn};
      std::atomic<uint32_t> has_failed{0};
    };
    std::array<Slot, kMostSlots> slots;
  };
  static constexpr size_t kHeaderBytes = 64;

  Relay(std::unique_ptr<RelayPlan> plan, std::shared_ptr<const ExpiredWait> expired, const RelayCapture& capture,
        std::shared_ptr<PinnedBlock> memory) noexcept;
  Header& header() const noexcept { return *reinterpret_cast<Header*>(memory_->data()); }
  std::byte* slot_of(size_t segment) const noexcept;
  Result<kernels::SlotCall> prepare_fill(size_t segment, RelayPlan::Copies& copies, cuda::StreamView stream);
  kernels::SlotCall prepare_take(size_t segment, RelayPlan::Copies& copies);
  Status enqueue_fill(size_t segment, cuda::StreamView stream);
  Status enqueue_take(size_t segment, cuda::StreamView stream);
  Status enqueue_trigger(cuda::StreamView stream);
  bool is_captured() const noexcept { return trigger_.id != 0; }
  kernels::SlotState* state_of(size_t segment) const noexcept;
  kernels::Trigger trigger() const noexcept;
  // Returns a call whose waits end at the deadline.
  kernels::SlotCall call_with(const RelayPlan::Copies& copies) const noexcept;
  Status note_last_use(cuda::StreamView stream);

  const std::unique_ptr<RelayPlan> plan_;
  const size_t num_slots_;
  const std::shared_ptr<const ExpiredWait> expired_;
  const kernels::Trigger trigger_;
  const std::shared_ptr<PinnedBlock> memory_;        // of the header, and of the slots if they are not shared
  const std::shared_ptr<PinnedBlock> shared_slots_;  // may be null
  size_t next_taken_ = 0;
  std::array<SlotBuffers, kMostSlots> engines_buffers_;  // of each slot's present segment
};

}  // namespace axon::gpu_comm
