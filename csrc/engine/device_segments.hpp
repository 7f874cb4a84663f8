// The memory of an operation on a device's tensors. It passes through host memory in segments. The device and the
// engine have each segment's slot of host memory in turn.
//
//   device:  fills the slot, hands it over ──► engine: runs the operation on the slot's buffers
//   device:  takes the results             ◄── engine: gives the slot back
//
// Segment s uses slot s % num_slots(). Implemented outside the engine, for each operation. Progress owner only; whose
// turn it is with a slot is shared with the device.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "memory/buffer.hpp"
#include "transport/fingerprint.hpp"

namespace axon::engine {

class DeviceSegments {
 public:
  static constexpr size_t kMostSlots = 4;

  virtual size_t count() const noexcept = 0;      // at least 1
  virtual size_t num_slots() const noexcept = 0;  // at most kMostSlots and count()

  // The parts of a segment's slot that the operation reads and writes. Valid until the slot's next segment.
  struct Buffers {
    // Unless it is 0, the engine runs this operation on them instead of the user's: all_to_all or all_gather.
    transport::OperationKind kind{};
    std::span<const ConstBuffer> inputs;
    std::span<const Buffer> outputs;
  };
  virtual Buffers buffers(size_t segment) noexcept = 0;

  // Whose turn it is with a slot. The device sets the engine's turn, with a release, when it has filled the slot for
  // its next segment.
  static constexpr uint32_t kDevicesTurn = 0;
  static constexpr uint32_t kEnginesTurn = 1;
  virtual const std::atomic<uint32_t>& turn(size_t slot) const noexcept = 0;
  // Hands the slot back to the device, which finds the segment's results in it.
  virtual void give_back(size_t segment) noexcept = 0;
  // The operation has failed: the device waits for no slot any more.
  virtual void fail() noexcept = 0;

 protected:
  ~DeviceSegments() = default;
};

}  // namespace axon::engine
