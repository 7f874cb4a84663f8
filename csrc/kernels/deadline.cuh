// Waits that end at a deadline.
#pragma once

#include "kernels/ptx.cuh"

namespace axon::kernels {

struct Deadline {
  uint32_t* has_expired;  // in pinned memory: set to 1 by the first wait that the deadline ends. Later ones end at once
  uint64_t longest_wait_ns;
};

// Called by one thread. Returns whether the condition was met before the deadline.
template <typename Condition>
__device__ __forceinline__ bool await(const Deadline& deadline, Condition is_met) {
  if (load_relaxed(deadline.has_expired) != 0) return false;
  const uint64_t begin = global_timer();
  while (!is_met()) {
    if (global_timer() - begin <= deadline.longest_wait_ns) continue;
    store_relaxed(deadline.has_expired, 1);
    return false;
  }
  return true;
}

}  // namespace axon::kernels
