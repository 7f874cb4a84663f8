#include "axon/pool.hpp"

#include <string>
#include <utility>

#include "rpc/core/pools/memory_pool.hpp"

namespace axon::library {

using rpc::MemoryPool;
using rpc::PoolMemory;

namespace {

// Memory of a memory_resource, which must be told its size again.
class Allocated {
 public:
  Allocated(std::pmr::memory_resource& from, size_t num_bytes)
      : from_(from), bytes_(static_cast<std::byte*>(from.allocate(num_bytes, MemoryPool::kPage)), num_bytes) {}
  ~Allocated() { from_.deallocate(bytes_.data(), bytes_.size(), MemoryPool::kPage); }
  Allocated(const Allocated&) = delete;
  Allocated& operator=(const Allocated&) = delete;

  std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::pmr::memory_resource& from_;
  const std::span<std::byte> bytes_;
};

}  // namespace

static MemoryPool::Source source_of(std::pmr::memory_resource& from) {
  return [&from](size_t num_bytes) -> PoolMemory {
    auto* const allocated = new Allocated(from, num_bytes);
    return {allocated->bytes(), Owner(allocated, [](void* held) { delete static_cast<Allocated*>(held); })};
  };
}

Pool::Pool(size_t max_num_bytes, std::pmr::memory_resource& from)
    : pool_(std::make_shared<MemoryPool>(max_num_bytes, source_of(from))) {}

bool Pool::receive(Announced& coming, size_t index) const {
  const size_t num_bytes = coming.tensor(index).num_bytes;
  if (num_bytes == 0) return true;
  PoolMemory memory = pool_->take(num_bytes);
  if (memory.bytes.empty()) return false;
  coming.receive_into(index, memory.bytes, std::move(memory.owner));
  return true;
}

void Pool::operator()(Announced& coming) const {
  for (size_t i = 0; i < coming.num_tensors(); ++i) {
    if (receive(coming, i)) continue;
    return coming.refuse("Pool: tensor " + std::to_string(i) + " takes " +
                         std::to_string(MemoryPool::in_pages(coming.tensor(i).num_bytes)) + " bytes; allowed: " +
                         std::to_string(pool_->num_bytes_left()) + ", the unused part of the pool");
  }
}

Ask Pool::or_blocks() const {
  return [pool = *this](Announced& coming) {
    for (size_t i = 0; i < coming.num_tensors(); ++i) pool.receive(coming, i);
  };
}

size_t Pool::num_bytes() const noexcept {
  return pool_->num_bytes();
}

}  // namespace axon::library
