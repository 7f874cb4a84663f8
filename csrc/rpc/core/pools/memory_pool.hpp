// A bounded pool of memory for received tensors.
//
//   const auto pool = std::make_shared<MemoryPool>(size_t{1} << 30, source);
//   PoolMemory memory = pool->take(num_bytes);  // empty while all of the pool is in use
//
// The memory returns to the pool when its owner is destroyed, which may be after the pool's last user is gone. Sizes
// are rounded up to pages, so that tensors of similar sizes can reuse an allocation: the smallest one that fits and is
// at most twice as large. Reuse allocates nothing. Any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "memory/owner.hpp"

namespace axon::rpc {

// Memory, and what frees it or returns it to its pool.
struct PoolMemory {
  std::span<std::byte> bytes{};
  Owner owner{};
};

class MemoryPool : public std::enable_shared_from_this<MemoryPool> {
 public:
  static constexpr size_t kPage = 4096;

  // Provides memory of whole pages. One thread at a time calls it, or frees what other pages replace. Meanwhile, others
  // return memory and reuse it. std::bad_alloc counts as if all of the pool were in use; other exceptions reach the
  // caller of take().
  using Source = std::function<PoolMemory(size_t num_bytes)>;

  MemoryPool(size_t max_num_bytes, Source source) : max_num_bytes_(max_num_bytes), source_(std::move(source)) {}
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  static constexpr size_t in_pages(size_t num_bytes) noexcept { return (num_bytes + kPage - 1) / kPage * kPage; }

  // Returns memory of this size, at least 1 byte, or none.
  PoolMemory take(size_t num_bytes);

  // The bytes that the pool holds, in use or not.
  size_t num_bytes() const noexcept;
  // The bytes that are not in use, including those that the pool does not hold yet.
  size_t num_bytes_left() const noexcept;

 private:
  struct Allocation;
  using Free = std::multimap<size_t, std::unique_ptr<Allocation>>;  // by size

  struct Allocation {
    PoolMemory memory;
    // Members of an allocation in use:
    std::shared_ptr<MemoryPool> pool{};  // shared with the pool's users, and other allocations in use
    Free::node_type node{};              // its own node, so that returning it allocates nothing
  };

  // Returns an allocation that is not in use, as if it were, or an empty node.
  Free::node_type reuse(size_t num_bytes) noexcept;
  // Returns a new allocation, or an empty node if there is no memory.
  Free::node_type make(size_t num_bytes);
  // Counts memory as in use before it is made. Returns false if there would be too much.
  bool reserve(size_t num_bytes) noexcept;
  void cancel_reservation(size_t num_bytes) noexcept;
  static void give_back(void* allocation) noexcept;

  const size_t max_num_bytes_;
  const Source source_;
  std::mutex source_mutex_;   // held while memory is made and freed; taken before mutex_
  mutable std::mutex mutex_;  // guards the following members
  Free free_;
  size_t num_bytes_ = 0;
  size_t num_bytes_out_ = 0;
};

}  // namespace axon::rpc
