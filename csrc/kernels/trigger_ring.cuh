// The device's end of a trigger ring: any number of kernels write to it at the same time, one thread of each.
//
//   TriggerWriter(trigger, {num_triggered, num_known_taken}, deadline).write();
//
// tests/model compiles this file for the host, and runs it in some 640,000 interleavings.
#pragma once

#include "kernels/deadline.cuh"
#include "kernels/trigger.hpp"

namespace axon::kernels {

static_assert((kNumTriggers & (kNumTriggers - 1)) == 0, "kNumTriggers must divide 2³², at which the counts wrap");

// The counters of a device's ring, in device memory. A kernel reads the host's counter over the bus only if the ring
// looks full.
struct TriggerCounts {
  uint32_t& num_triggered;    // entries that kernels have taken to write to
  uint32_t& num_known_taken;  // entries that the host is known to have taken
};

class TriggerWriter {
 public:
  __device__ __forceinline__ TriggerWriter(const Trigger& trigger, const TriggerCounts& counts,
                                           const Deadline& deadline)
      : trigger_(trigger), counts_(counts), deadline_(deadline), index_(load_relaxed(&counts.num_triggered)) {}

  // Takes an entry only once it is free, since the host would wait for one that is taken and never written. The ring is
  // full if the host is slow, or has ended, after it has failed all its operations.
  __device__ __forceinline__ void write() {
    while (true) {
      if (!has_room() && !await_room()) return;
      const uint32_t found = atomicCAS(&counts_.num_triggered, index_, index_ + 1);
      if (found == index_) break;
      index_ = found;
    }
    store_relaxed(&trigger_.entries[index_ % kNumTriggers], trigger_.id);
  }

 private:
  __device__ __forceinline__ bool has_room() const {
    if (index_ - load_relaxed(&counts_.num_known_taken) < kNumTriggers) return true;
    const uint32_t num_taken = load_acquire(trigger_.num_taken);
    store_relaxed(&counts_.num_known_taken, num_taken);
    return index_ - num_taken < kNumTriggers;
  }

  // Returns false once the operation has failed or the deadline has passed.
  __device__ __forceinline__ bool await_room() {
    bool has_failed = false;
    const bool is_in_time = await(deadline_, [&] {
      index_ = load_relaxed(&counts_.num_triggered);
      has_failed = load_acquire(trigger_.has_failed) != 0;
      return has_failed || has_room();
    });
    return !has_failed && is_in_time;
  }

  const Trigger& trigger_;
  const TriggerCounts counts_;
  const Deadline& deadline_;
  uint32_t index_;  // of the next entry, as this thread has seen it last
};

}  // namespace axon::kernels
