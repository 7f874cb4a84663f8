// Pinned host memory, kept for reuse: allocating it takes the driver's locks and may wait for a busy device.
#pragma once

#include <map>
#include <mutex>
#include <optional>

#include "base/status.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"

namespace axon {

class PinnedPool {
 public:
  struct Block {
    PinnedMemory memory;
    size_t num_bytes;  // a power of two
    Event last_use;    // to be recorded behind the last copy from or to the block
  };

  // The current device's, whose streams and events the blocks are used with.
  static PinnedPool& current();

  // Any thread, like give_back(). Waits for a block's last use rather than pin more than kPlenty, if there is one that
  // fits: a host far ahead of its device would pin all memory.
  Result<Block> take(size_t num_bytes);
  // May be handed out again once `last_use` has passed.
  void give_back(Block block);

 private:
  static constexpr size_t kSmallestBlock = 4096;
  static constexpr size_t kPlenty = size_t{1} << 30;

  std::optional<Block> find(size_t num_bytes);

  std::mutex mutex_;
  std::multimap<size_t, Block> resting_;  // by size, those of one size by age; guarded by mutex_
  size_t num_bytes_pinned_ = 0;           // guarded by mutex_
};

}  // namespace axon
