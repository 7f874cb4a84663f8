// Pool of pinned host memory, since allocation takes the driver's locks and may wait for a busy device. Allocations
// belong to the caller until they are given back.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

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

// Memory of a pool, which gets it back at the end: freeing it would wait for the device.
class PinnedBlock {
 public:
  // Takes memory from the current device's pool.
  static Result<std::shared_ptr<PinnedBlock>> take(size_t num_bytes);
  ~PinnedBlock() { pool_.give_back(std::move(allocation_)); }
  PinnedBlock(const PinnedBlock&) = delete;
  PinnedBlock& operator=(const PinnedBlock&) = delete;

  std::byte* data() const noexcept { return allocation_.memory.data(); }
  size_t num_bytes() const noexcept { return allocation_.num_bytes; }
  // Record it after the last use of the memory on a stream.
  cuda::EventView last_use() const noexcept { return allocation_.last_use; }

 private:
  PinnedBlock(PinnedPool& pool, PinnedPool::Allocation allocation) noexcept
      : pool_(pool), allocation_(std::move(allocation)) {}

  PinnedPool& pool_;
  PinnedPool::Allocation allocation_;
};

}  // namespace axon::gpu_comm
