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
  Free::node_type node = reuse(size);
  if (node.empty()) node = make(size);
  if (node.empty()) return {};
  Allocation* const allocation = node.mapped().get();
  allocation->pool = shared_from_this();
  allocation->node = std::move(node);
  return {allocation->memory.bytes.first(num_bytes), Owner(allocation, &MemoryPool::give_back)};
}

MemoryPool::Free::node_type MemoryPool::reuse(size_t num_bytes) noexcept {
  const std::lock_guard lock(mutex_);
  const auto best = free_.lower_bound(num_bytes);
  if (best == free_.end() || best->first > 2 * num_bytes) return {};
  num_bytes_out_ += best->first;
  return free_.extract(best);
}

MemoryPool::Free::node_type MemoryPool::make(size_t num_bytes) {
  const std::lock_guard one_at_a_time(source_mutex_);
  if (!reserve(num_bytes)) return {};
  try {
    Free made;
    made.emplace(num_bytes, std::make_unique<Allocation>(source_(num_bytes)));
    return made.extract(made.begin());
  } catch (const std::bad_alloc&) {
    cancel_reservation(num_bytes);
    return {};
  } catch (...) {
    cancel_reservation(num_bytes);
    throw;
  }
}

// Frees other allocations if there would be too much: the largest ones, since fewer of them need to be made again.
bool MemoryPool::reserve(size_t num_bytes) noexcept {
  Free evicted;  // freed without the lock
  const std::lock_guard lock(mutex_);
  if (num_bytes > max_num_bytes_ - num_bytes_out_) return false;
  while (num_bytes > max_num_bytes_ - num_bytes_) {
    const auto largest = std::prev(free_.end());
    num_bytes_ -= largest->first;
    evicted.insert(free_.extract(largest));
  }
  num_bytes_ += num_bytes;
  num_bytes_out_ += num_bytes;
  return true;
}

void MemoryPool::cancel_reservation(size_t num_bytes) noexcept {
  const std::lock_guard lock(mutex_);
  num_bytes_ -= num_bytes;
  num_bytes_out_ -= num_bytes;
}

void MemoryPool::give_back(void* given) noexcept {
  auto* const allocation = static_cast<Allocation*>(given);
  const std::shared_ptr<MemoryPool> pool = std::move(allocation->pool);  // until this function has ended
  const std::lock_guard lock(pool->mutex_);
  pool->num_bytes_out_ -= allocation->node.key();
  pool->free_.insert(std::move(allocation->node));
}

}  // namespace axon::rpc
