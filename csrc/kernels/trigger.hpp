// Tells the host that a graph which holds a call has been launched: a kernel writes the call's id into the next free
// entry of a ring (kernels/trigger_ring.cuh). The host sets the entry to 0 when it has read it, and counts it as taken
// (engine/trigger_ring.hpp). A device has one ring, in pinned memory.
#pragma once

#include "kernels/trigger_ring_size.hpp"

namespace axon::kernels {

struct Trigger {
  uint32_t id = 0;              // 0: tells nothing
  uint32_t* entries = nullptr;  // kNumTriggers
  const uint32_t* num_taken = nullptr;
  const uint32_t* has_failed = nullptr;  // of the operation: once it is not 0, a full ring is not awaited
};

}  // namespace axon::kernels
