#include "base/size_class_pool.hpp"

#include <bit>
#include <new>

namespace axon {

static constexpr std::align_val_t kAlignment{64};

size_t BlockPool::class_of(size_t num_bytes) noexcept {
  if (num_bytes <= kSmallestBlock) return 0;
  return static_cast<size_t>(std::bit_width(num_bytes - 1) - std::bit_width(kSmallestBlock - 1));
}

BlockPool::~BlockPool() {
  for (FreeBlock* block : free_) {
    while (block != nullptr) {
      FreeBlock* next = block->next;
      ::operator delete(block, kAlignment);
      block = next;
    }
  }
}

void* BlockPool::allocate(size_t num_bytes) {
  if (num_bytes > kLargestBlock) return ::operator new(num_bytes, kAlignment);
  const size_t index = class_of(num_bytes);
  FreeBlock* block = free_[index];
  if (block == nullptr) return ::operator new(kSmallestBlock << index, kAlignment);
  free_[index] = block->next;
  return block;
}

void BlockPool::release(void* block, size_t num_bytes) noexcept {
  if (num_bytes > kLargestBlock) {
    ::operator delete(block, kAlignment);
    return;
  }
  auto* freed = static_cast<FreeBlock*>(block);
  freed->next = free_[class_of(num_bytes)];
  free_[class_of(num_bytes)] = freed;
}

}  // namespace axon
