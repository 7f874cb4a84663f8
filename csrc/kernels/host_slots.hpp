// Moves data between a GPU's tensors and slots of pinned host memory, which the GPU and the host have in turn. Does not
// own its buffers.
//
//   AXON_TRY(move_slot({.copies = to_slot, .awaited = &state, .handed_over = &state, …}, stream));
//
// No copy engine and no stream memory operation: a kernel waits for the slot, copies, and hands the slot over, within a
// few µs. Every wait ends: when the host hands the slot over, or at the deadline. No number changes from call to call,
// so a CUDA graph can replay a call. A trigger tells the host of each launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.hpp"
#include "cuda/stream.hpp"
#include "kernels/trigger.hpp"

namespace axon::kernels {

// The two addresses must be equal modulo 16.
struct SlotCopy {
  std::byte* target;
  const std::byte* source;
  uint64_t num_bytes;
};

// Says which side has a slot, the device or the host. In pinned memory. The side that has the slot hands it over.
struct alignas(8) SlotState {
  static constexpr uint32_t kDevicesTurn = 0;
  static constexpr uint32_t kHostsTurn = 1;

  uint32_t turn;
  uint32_t has_failed;  // set by the host at any time: kernels copy nothing from then on
};

struct SlotCall {
  std::span<const SlotCopy> copies{};
  const SlotState* awaited = nullptr;  // null: it is the device's turn already
  SlotState* handed_over = nullptr;    // to the host, once all is copied. Null: the device keeps the slot
  int num_handed_over = 1;             // as many slots, whose states lie one after the other
  uint32_t* has_expired = nullptr;     // in pinned memory: set to 1 if the deadline has ended the wait
  uint64_t longest_wait_ns = 0;
  Trigger trigger{};  // sent before all else
};

Status move_slot(const SlotCall& call, cuda::StreamView stream);

// Enqueues one call after the other, in one launch if both are small.
Status move_slot_there_and_back(const SlotCall& there, const SlotCall& back, cuda::StreamView stream);

// Loads the kernels onto the current device.
Status load_slot_kernels();

}  // namespace axon::kernels
