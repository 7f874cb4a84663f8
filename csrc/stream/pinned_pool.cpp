#include "stream/pinned_pool.hpp"

#include <algorithm>
#include <bit>

#include "cuda/capture.hpp"

namespace axon {

// Never destroyed: when the process exits, CUDA may be gone before.
PinnedPool& PinnedPool::instance() {
  static auto* pool = new PinnedPool;
  return *pool;
}

Result<PinnedPool::Block> PinnedPool::take(size_t num_bytes) {
  const RelaxedCapture beside_captures;
  const size_t rounded = std::bit_ceil(std::max(num_bytes, kSmallestBlock));
  {
    const std::lock_guard lock(mutex_);
    const auto [first, last] = resting_.equal_range(rounded);
    for (auto candidate = first; candidate != last; ++candidate) {
      if (!candidate->second.last_use.view().has_passed()) continue;
      Block block = std::move(candidate->second);
      resting_.erase(candidate);
      return block;
    }
  }
  Result<PinnedMemory> memory = PinnedMemory::allocate(rounded);
  if (!memory.ok()) return std::move(memory.status());
  Result<Event> event = Event::create_untimed();
  if (!event.ok()) return std::move(event.status());
  return Block{std::move(memory).value(), rounded, std::move(event).value()};
}

void PinnedPool::give_back(Block block) {
  const std::lock_guard lock(mutex_);
  const size_t num_bytes = block.num_bytes;
  resting_.emplace(num_bytes, std::move(block));
}

}  // namespace axon
