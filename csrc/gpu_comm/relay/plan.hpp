// Describes to a Relay how to run an operation (relay.hpp). A plan says how the operation is divided into segments, and
// what lies where in their slots. It also says what the stream does before and after the engine has a slot. Each kind
// of operation has a plan; all ranks of an operation make the same one.
//
// A Relay calls the functions that enqueue something within the call of the user, in the order of the segments. The
// operation's arguments outlive that call only.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.hpp"
#include "cuda/stream.hpp"
#include "kernels/host_slots.hpp"
#include "memory/buffer.hpp"
#include "transport/fingerprint.hpp"

namespace axon::gpu_comm {

// The operation that the engine runs on a segment, and the buffers of its slot on which it runs it.
struct SlotBuffers {
  // Unless it is 0, the engine runs this operation instead of the user's.
  transport::OperationKind kind{};
  std::vector<ConstBuffer> inputs;
  std::vector<Buffer> outputs;
};

// Kernels copy whole vectors: what they copy to a slot must lie there at the offset in a vector that it has on the GPU.
// Parts of a tensor begin at multiples of a granule, which is several vectors.
inline size_t misalignment_of(const std::byte* data) noexcept {
  return reinterpret_cast<uintptr_t>(data) % 16;
}

class RelayPlan {
 public:
  using Copies = std::vector<kernels::SlotCopy>;

  virtual ~RelayPlan() = default;

  virtual size_t num_segments() const noexcept = 0;
  // How many are in progress at a time: at least 1, at most num_segments() and DeviceSegments::kMostSlots. A segment
  // may depend on others that are as many or more positions before it.
  virtual size_t num_slots() const noexcept = 0;
  virtual size_t slot_bytes() const noexcept = 0;  // a multiple of 16
  // Returns whether the device gives the engine nothing. Then the engine need not wait for the stream.
  virtual bool only_receives() const noexcept { return false; }
  // How long the stream waits for the engine, which ends an overdue operation earlier.
  virtual std::chrono::nanoseconds longest_wait() const noexcept = 0;

  // Called by the engine, from any thread.
  virtual SlotBuffers buffers(size_t segment, std::byte* slot) const = 0;

  // Enqueues what needs neither slots nor the engine, once.
  virtual Status enqueue_start(cuda::StreamView /*stream*/) { return Status(); }
  // Enqueues what prepares a segment, and appends what is then copied to its slot.
  virtual Status prepare(size_t segment, std::byte* slot, Copies& to_slot, cuda::StreamView stream) = 0;
  // Returns whether the stream waits for the segment's results.
  virtual bool has_results(size_t segment) const noexcept = 0;
  // Appends what is copied from the slot once the engine has returned it …
  virtual void add_results(size_t segment, std::byte* slot, Copies& from_slot) = 0;
  // … and enqueues what follows.
  virtual Status finish(size_t /*segment*/, std::byte* /*slot*/, cuda::StreamView /*stream*/) { return Status(); }
};

inline size_t slots_bytes_of(const RelayPlan& plan) noexcept {
  return plan.num_slots() * plan.slot_bytes();
}

// Returns whether the engine has given all slots back once the stream has passed the operation.
inline bool waits_for_all_slots(const RelayPlan& plan) noexcept {
  for (size_t segment = 0; segment < plan.num_segments(); ++segment) {
    if (!plan.has_results(segment)) return false;
  }
  return true;
}

}  // namespace axon::gpu_comm
