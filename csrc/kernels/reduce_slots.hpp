// Reduces what several ranks have put into slots of this GPU's memory, or of pinned host memory. The kernel waits for
// no rank. Does not own its buffers.
//
//   AXON_TRY(reduce_slots({.slots = slots, .slot_bytes = stride, .num_slots = n, .output = total, …}, stream));
#pragma once

#include "base/data_type.hpp"
#include "base/status.hpp"
#include "cuda/stream.hpp"

namespace axon::kernels {

struct ReduceSlotsCall {
  const std::byte* slots = nullptr;  // in rank order; the address and slot_bytes are multiples of 16
  size_t slot_bytes = 0;             // distance between slots; bytes between them may be read
  int num_slots = 0;
  // If own_slot is not negative, what that slot would hold is here. Any alignment; may be the output.
  const std::byte* own = nullptr;
  int own_slot = -1;
  std::byte* output = nullptr;  // any alignment; must not overlap the slots
  size_t num_elements = 0;
  DataType dtype{};                       // a floating-point or complex type
  Reduction reduction = Reduction::kSum;  // or kAverage
  int divisor = 0;                        // of an average; 0: num_slots
  int most_blocks = 132 * 4;
};

// Returns whether there is a kernel for them.
bool can_reduce_slots(DataType dtype, Reduction reduction) noexcept;

// Reduces in rank order, in the elements' accumulation type, rounded once, as kernels::zero_copy::all_reduce does.
Status reduce_slots(const ReduceSlotsCall& call, cuda::StreamView stream);

// Loads the kernels onto the current device.
Status load_reduce_slots_kernels();

}  // namespace axon::kernels
