#include "axon/pool.hpp"

#include <map>
#include <mutex>
#include <new>
#include <string>
#include <utility>

namespace axon::library {

static constexpr size_t kPage = 4096;

static constexpr size_t in_pages(size_t num_bytes) noexcept {
  return (num_bytes + kPage - 1) / kPage * kPage;
}

class Pool::State : public std::enable_shared_from_this<State> {
 public:
  State(size_t max_num_bytes, std::pmr::memory_resource& from) : max_num_bytes_(max_num_bytes), from_(from) {}

  bool receive(Announced& coming, size_t index);
  size_t num_bytes() const noexcept {
    const std::lock_guard lock(mutex_);
    return num_bytes_;
  }
  size_t num_bytes_left() const noexcept {
    const std::lock_guard lock(mutex_);
    return max_num_bytes_ - num_bytes_out_;
  }

 private:
  struct Allocation;
  using Free = std::multimap<size_t, std::unique_ptr<Allocation>>;  // by size

  struct Allocation {
    Allocation(std::pmr::memory_resource& source, size_t num_bytes)
        : from(source), memory(static_cast<std::byte*>(source.allocate(num_bytes, kPage)), num_bytes) {}
    ~Allocation() { from.deallocate(memory.data(), memory.size(), kPage); }
    Allocation(const Allocation&) = delete;
    Allocation& operator=(const Allocation&) = delete;

    std::pmr::memory_resource& from;
    const std::span<std::byte> memory;
    // Members of an allocation in use:
    std::shared_ptr<State> pool;  // shared with Pools, and other allocations in use
    Free::node_type node;         // its own node, so that returning it allocates nothing
  };

  // Returns null if the pool has no memory left.
  Allocation* take(size_t num_bytes);
  Free::iterator make(size_t num_bytes);
  static void give_back(void* allocation) noexcept;

  const size_t max_num_bytes_;
  std::pmr::memory_resource& from_;
  mutable std::mutex mutex_;  // guards the following members
  Free free_;
  size_t num_bytes_ = 0;
  size_t num_bytes_out_ = 0;
};

bool Pool::State::receive(Announced& coming, size_t index) {
  const size_t num_bytes = coming.tensor(index).num_bytes;
  if (num_bytes == 0) return true;
  if (num_bytes > max_num_bytes_) return false;  // the rounded size could overflow
  Allocation* const allocation = take(in_pages(num_bytes));
  if (allocation == nullptr) return false;
  coming.receive_into(index, allocation->memory.first(num_bytes), Owner(allocation, &State::give_back));
  return true;
}

Pool::State::Allocation* Pool::State::take(size_t num_bytes) {
  const std::lock_guard lock(mutex_);
  auto best = free_.lower_bound(num_bytes);
  if (best == free_.end() || best->first > 2 * num_bytes) best = make(num_bytes);
  if (best == free_.end()) return nullptr;
  Allocation* const allocation = best->second.get();
  num_bytes_out_ += allocation->memory.size();
  allocation->pool = shared_from_this();
  allocation->node = free_.extract(best);
  return allocation;
}

// Allocates memory, and frees other allocations if there would be too much: the largest ones, since fewer of them need
// to be made again.
Pool::State::Free::iterator Pool::State::make(size_t num_bytes) {
  if (num_bytes > max_num_bytes_ - num_bytes_out_) return free_.end();
  while (num_bytes > max_num_bytes_ - num_bytes_) {
    const auto largest = std::prev(free_.end());
    num_bytes_ -= largest->first;
    free_.erase(largest);
  }
  try {
    const auto made = free_.emplace(num_bytes, std::make_unique<Allocation>(from_, num_bytes));
    num_bytes_ += num_bytes;
    return made;
  } catch (const std::bad_alloc&) {
    return free_.end();
  }
}

void Pool::State::give_back(void* given) noexcept {
  auto* const allocation = static_cast<Allocation*>(given);
  const std::shared_ptr<State> pool = std::move(allocation->pool);  // until this function has ended
  const std::lock_guard lock(pool->mutex_);
  pool->num_bytes_out_ -= allocation->memory.size();
  pool->free_.insert(std::move(allocation->node));
}

Pool::Pool(size_t max_num_bytes, std::pmr::memory_resource& from)
    : state_(std::make_shared<State>(max_num_bytes, from)) {}

bool Pool::receive(Announced& coming, size_t index) const {
  return state_->receive(coming, index);
}

void Pool::operator()(Announced& coming) const {
  for (size_t i = 0; i < coming.num_tensors(); ++i) {
    if (receive(coming, i)) continue;
    return coming.refuse(
        "Pool: tensor " + std::to_string(i) + " takes " + std::to_string(in_pages(coming.tensor(i).num_bytes)) +
        " bytes; allowed: " + std::to_string(state_->num_bytes_left()) + ", the unused part of the pool");
  }
}

Ask Pool::or_blocks() const {
  return [pool = *this](Announced& coming) {
    for (size_t i = 0; i < coming.num_tensors(); ++i) pool.receive(coming, i);
  };
}

size_t Pool::num_bytes() const noexcept {
  return state_->num_bytes();
}

}  // namespace axon::library
