#include "rpc/core/pools/memory_pool.hpp"

#include <new>
#include <utility>

namespace axon::rpc {

size_t MemoryPool::num_bytes() const noexcept {
  const std::lock_guard lock(mutex_);
  return num_bytes_;
}

size_t MemoryPool::num_bytes_left() const noexcept {
  const std::lock_guard lock(mutex_);
  return max_num_bytes_ - num_bytes_out_;
}

PoolMemory MemoryPool::take(size_t num_bytes) {
  if (num_bytes > max_num_bytes_) return {};  // the rounded size could overflow
  const size_t size = in_pages(num_bytes);
  const std::lock_guard lock(mutex_);
  auto best = free_.lower_bound(size);
  if (best == free_.end() || best->first > 2 * size) best = make(size);
  if (best == free_.end()) return {};
  Allocation* const allocation = best->second.get();
  num_bytes_out_ += best->first;
  allocation->pool = shared_from_this();
  allocation->node = free_.extract(best);
  return {allocation->memory.bytes.first(num_bytes), Owner(allocation, &MemoryPool::give_back)};
}

// Allocates memory, and frees other allocations if there would be too much: the largest ones, since fewer of them need
// to be made again.
MemoryPool::Free::iterator MemoryPool::make(size_t num_bytes) {
  if (num_bytes > max_num_bytes_ - num_bytes_out_) return free_.end();
  while (num_bytes > max_num_bytes_ - num_bytes_) {
    const auto largest = std::prev(free_.end());
    num_bytes_ -= largest->first;
    free_.erase(largest);
  }
  try {
    const auto made = free_.emplace(num_bytes, std::make_unique<Allocation>(source_(num_bytes)));
    num_bytes_ += num_bytes;
    return made;
  } catch (const std::bad_alloc&) {
    return free_.end();
  }
}

void MemoryPool::give_back(void* given) noexcept {
  auto* const allocation = static_cast<Allocation*>(given);
  const std::shared_ptr<MemoryPool> pool = std::move(allocation->pool);  // until this function has ended
  const std::lock_guard lock(pool->mutex_);
  pool->num_bytes_out_ -= allocation->node.key();
  pool->free_.insert(std::move(allocation->node));
}

}  // namespace axon::rpc
