#include "base/size_class_pool.hpp"

#include <bit>
#include <new>

namespace axon {

static constexpr std::align_val_t kAlignment{64};

size_t SizeClassPool::class_of(size_t num_bytes) noexcept {
  if (num_bytes <= kSmallestAllocation) return 0;
  return static_cast<size_t>(std::bit_width(num_bytes - 1) - std::bit_width(kSmallestAllocation - 1));
}

SizeClassPool::~SizeClassPool() {
  for (FreeAllocation* allocation : free_) {
    while (allocation != nullptr) {
      FreeAllocation* next = allocation->next;
      ::operator delete(allocation, kAlignment);
      allocation = next;
    }
  }
}

void* SizeClassPool::allocate(size_t num_bytes) {
  if (num_bytes > kLargestAllocation) return ::operator new(num_bytes, kAlignment);
  const size_t index = class_of(num_bytes);
  FreeAllocation* allocation = free_[index];
  if (allocation == nullptr) return ::operator new(kSmallestAllocation << index, kAlignment);
  free_[index] = allocation->next;
  return allocation;
}

void SizeClassPool::release(void* allocation, size_t num_bytes) noexcept {
  if (num_bytes > kLargestAllocation) {
    ::operator delete(allocation, kAlignment);
    return;
  }
  auto* freed = static_cast<FreeAllocation*>(allocation);
  freed->next = free_[class_of(num_bytes)];
  free_[class_of(num_bytes)] = freed;
}

}  // namespace axon
