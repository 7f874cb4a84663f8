// Pinned host memory, kept for reuse: allocating it takes the driver's locks and may wait for a busy device.
#pragma once

#include <map>
#include <mutex>
#include <optional>

#include "base/status.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"

namespace axon::gpu_comm {

class PinnedPool {
 public:
  struct Allocation {
    cuda::PinnedMemory memory;
    size_t num_bytes;      // a power of two
    cuda::Event last_use;  // to be recorded behind the last copy from or to the allocation
  };

  // The current device's, whose streams and events the allocations are used with.
  static PinnedPool& current();

  // Any thread, like give_back(). Never waits: a host that is far ahead of its device pins more.
  Result<Allocation> take(size_t num_bytes);
  // May be handed out again once `last_use` has passed.
  void give_back(Allocation allocation);

 private:
  static constexpr size_t kSmallestAllocation = 4096;

  // One of that size whose last use has passed.
  std::optional<Allocation> find(size_t num_bytes);

  std::mutex mutex_;
  std::multimap<size_t, Allocation> resting_;  // by size, those of one size by age; guarded by mutex_
};

}  // namespace axon::gpu_comm
