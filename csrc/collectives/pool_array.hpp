// A fixed number of small values, usually one per rank, in the engine's size-class pool: no heap on the message path.
//
//   PoolArray<ConstBuffer> operands(exchange.size_class_pool(), exchange.size());
//   operands[rank] = own;
//
// Only for memory that this process alone accesses; memory of transfers comes from Exchange::scratch.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>

#include "base/size_class_pool.hpp"

namespace axon::collectives {

template <typename T>
class PoolArray {
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  PoolArray(SizeClassPool& pool, int count)
      : pool_(pool),
        values_(static_cast<T*>(pool.allocate(static_cast<size_t>(count) * sizeof(T))), static_cast<size_t>(count)) {
    std::uninitialized_value_construct(values_.begin(), values_.end());
  }
  ~PoolArray() { pool_.release(values_.data(), values_.size_bytes()); }
  PoolArray(const PoolArray&) = delete;
  PoolArray& operator=(const PoolArray&) = delete;

  T& operator[](int index) noexcept { return values_[static_cast<size_t>(index)]; }
  operator std::span<const T>() const noexcept { return values_; }

 private:
  SizeClassPool& pool_;
  std::span<T> values_;
};

}  // namespace axon::collectives
