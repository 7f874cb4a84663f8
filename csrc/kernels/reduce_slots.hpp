// The reduction of what several ranks have put into slots of this GPU's memory: no rank is waited for.
//
//   AXON_TRY(reduce_slots({.slots = slots, .slot_bytes = stride, .num_slots = n, .output = total, …}, stream));
#pragma once

#include "base/data_type.hpp"
#include "base/status.hpp"
#include "cuda/stream.hpp"

namespace axon::kernels {

struct ReduceSlotsCall {
  const std::byte* slots = nullptr;  // in rank order; here and below, addresses and slot_bytes are multiples of 16
  size_t slot_bytes = 0;             // from one to the next; what lies between them may be read
  int num_slots = 0;
  std::byte* output = nullptr;  // none of the slots
  size_t num_elements = 0;
  DataType dtype{};                       // a floating-point or complex one
  Reduction reduction = Reduction::kSum;  // or kAverage
};

// In rank order, in the elements' accumulation type, rounded once: as kernels::zero_copy::all_reduce does.
Status reduce_slots(const ReduceSlotsCall& call, cuda::StreamView stream);

// Puts its kernels on the current device.
Status load_reduce_slots_kernels();

}  // namespace axon::kernels
