// Pool of pinned host memory, since allocation takes the driver's locks and may wait for a busy device. Allocations
// belong to the caller until they are given back.
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
    size_t num_bytes;
    cuda::Event last_use;  // to be recorded after the last copy from or to the allocation
  };

  // Returns the pool of the current device, whose streams and events the allocations are used with.
  static PinnedPool& current();

  // Thread-safe, like give_back(). Never waits: a host that is far ahead of its device pins more memory.
  Result<Allocation> take(size_t num_bytes);
  // The allocation may be handed out again after `last_use` has passed.
  void give_back(Allocation allocation);

 private:
  static constexpr size_t kSmallestAllocation = 4096;

  static size_t rounded_up(size_t num_bytes) noexcept;
  // Finds an allocation of that size whose last use has passed.
  std::optional<Allocation> find(size_t num_bytes);

  std::mutex mutex_;
  std::multimap<size_t, Allocation> resting_;  // by size, then by age; guarded by mutex_
};

}  // namespace axon::gpu_comm
