// The host's end of a trigger ring, into which a device's kernels write the ids of calls (kernels/trigger_ring.cuh).
//
//   TriggerReader reader(ring);
//   while (const uint32_t id = reader.take()) …
//
// One reader at a time. tests/model runs it beside writers in some 640,000 interleavings.
#pragma once

#include <cstdint>
#include <span>

#include "base/sync.hpp"

namespace axon::engine {

// Pinned memory that a device's kernels write to. Lives as long as the process.
struct TriggerRing {
  std::span<sync::atomic<uint32_t>> entries;  // by the device: the id of a call; 0: empty
  sync::atomic<uint32_t>& num_taken;          // by the reader: the entries that it has emptied
};

class TriggerReader {
 public:
  // Goes on where the reader before has stopped.
  explicit TriggerReader(const TriggerRing& ring) noexcept : ring_(ring), num_taken_(ring.num_taken.load()) {}

  // The entry that is written next, or to be taken next.
  sync::atomic<uint32_t>& next() const noexcept { return ring_.entries[num_taken_ % ring_.entries.size()]; }

  // Returns the id in the next entry, or 0 if it is empty. Empties the entry before the device may write to it again.
  uint32_t take() noexcept {
    const uint32_t id = next().load(std::memory_order_acquire);
    if (id == 0) return 0;
    next().store(0, std::memory_order_relaxed);
    ring_.num_taken.store(++num_taken_, std::memory_order_release);
    return id;
  }

 private:
  const TriggerRing ring_;
  uint32_t num_taken_;
};

}  // namespace axon::engine
