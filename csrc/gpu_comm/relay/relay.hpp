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
// group, which it must outlive.
class ExpiredWait {
 public:
  static Result<std::unique_ptr<const ExpiredWait>> open();
  // Gives its memory back, since freeing it would wait for the device.
  ~ExpiredWait();
  ExpiredWait(const ExpiredWait&) = delete;
  ExpiredWait& operator=(const ExpiredWait&) = delete;
  bool has_occurred() const noexcept { return flag().load(std::memory_order_acquire) != 0; }
  std::atomic<uint32_t>& flag() const noexcept;

 private:
  ExpiredWait(PinnedPool& pool, PinnedPool::Allocation allocation) noexcept
      : pool_(pool), allocation_(std::move(allocation)) {}

  PinnedPool& pool_;
  PinnedPool::Allocation allocation_;
};

class Relay final : public engine::DeviceSegments {
 public:
  // Takes pinned memory for slots of the current device.
  static Result<std::shared_ptr<Relay>> open(std::unique_ptr<RelayPlan> plan, const ExpiredWait& expired);
  // Gives the memory back. The engine must have released it before (Operation::on_released).
  ~Relay();
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
  const std::atomic<uint32_t>& filled_flag(size_t slot) const noexcept override { return header().filled[slot]; }
  void give_back(size_t segment) noexcept override;
  void fail() noexcept override;

 private:
  // At the front of the pinned memory.
  struct Header {
    std::array<std::atomic<uint32_t>, kMostSlots> filled;    // by the device: segment + 1
    std::array<std::atomic<uint32_t>, kMostSlots> returned;  // by the engine: segment + 1, or kSlotFailed
  };
  static constexpr size_t kHeaderBytes = 64;

  Relay(std::unique_ptr<RelayPlan> plan, const ExpiredWait& expired, PinnedPool& pool,
        PinnedPool::Allocation allocation) noexcept;
  Header& header() const noexcept { return *reinterpret_cast<Header*>(allocation_.memory.data()); }
  std::byte* slot_of(size_t segment) const noexcept;
  Result<kernels::SlotCall> prepare_fill(size_t segment, RelayPlan::Copies& copies, cuda::StreamView stream);
  kernels::SlotCall prepare_take(size_t segment, RelayPlan::Copies& copies);
  Status enqueue_fill(size_t segment, cuda::StreamView stream);
  Status enqueue_take(size_t segment, cuda::StreamView stream);
  // The call waits until the engine has returned the slot of this segment.
  void wait_for(size_t segment, kernels::SlotCall& call) const noexcept;
  // The call hands the slot over to the engine for this segment.
  void hand_over(size_t segment, kernels::SlotCall& call) const noexcept;

  const std::unique_ptr<RelayPlan> plan_;
  const size_t num_slots_;
  std::atomic<uint32_t>& has_expired_;
  PinnedPool& pool_;
  PinnedPool::Allocation allocation_;
  size_t next_taken_ = 0;
  std::array<SlotBuffers, kMostSlots> engines_buffers_;  // of each slot's present segment
};

}  // namespace axon::gpu_comm
