// Moves data between a GPU's tensors and slots of pinned host memory, which the GPU and the host have in turn. Does not
// own its buffers.
//
//   AXON_TRY(move_slot({.copies = to_slot, .awaited_flag = &returned, .awaited = 1, .flag = &filled, .value = 2, …},
//   stream));
//
// No copy engine and no stream memory operation: a kernel waits for the slot, copies, and hands the slot over, within a
// few µs. Every wait ends: with the host's flag, or at the deadline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.hpp"
#include "cuda/stream.hpp"

namespace axon::kernels {

// The two addresses must be equal modulo 16.
struct SlotCopy {
  std::byte* target;
  const std::byte* source;
  uint64_t num_bytes;
};

// The host sets the awaited flag to this value if it has failed: the kernel copies nothing then.
inline constexpr uint32_t kSlotFailed = UINT32_MAX;

struct SlotCall {
  std::span<const SlotCopy> copies{};
  // In pinned memory, written by the host. Null: the slot is free.
  const uint32_t* awaited_flag = nullptr;
  uint32_t awaited = 0;  // the kernel copies once the flag is at least this
  // In pinned memory, for the host: set to `value` once all is copied. Null: the host does not wait for it.
  uint32_t* flag = nullptr;
  uint32_t value = 0;
  uint32_t* has_expired = nullptr;  // in pinned memory: set to 1 if the deadline has ended the wait
  uint64_t longest_wait_ns = 0;
};

Status move_slot(const SlotCall& call, cuda::StreamView stream);

// Enqueues one call after the other, in one launch if both are small.
Status move_slot_there_and_back(const SlotCall& there, const SlotCall& back, cuda::StreamView stream);

// Loads the kernels onto the current device.
Status load_slot_kernels();

}  // namespace axon::kernels
