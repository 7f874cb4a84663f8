// Allocations by power-of-two size, kept for reuse: coroutine frames, request nodes, and unexpected payloads of up to
// 64 KiB with their headers.
//
//   void* allocation = pool.allocate(num_bytes);
//   pool.release(allocation, num_bytes);
//
// After warm-up allocate() and release() do not use the heap, except for sizes above kLargestAllocation. One thread at
// a time: the pool is used only by the owner of the engine's progress token, so it needs no lock.
#pragma once

#include <array>
#include <cstddef>

namespace axon {

class SizeClassPool {
 public:
  static constexpr size_t kSmallestAllocation = 64;
  static constexpr size_t kLargestAllocation = size_t{1} << 17;

  SizeClassPool() = default;
  ~SizeClassPool();
  SizeClassPool(const SizeClassPool&) = delete;
  SizeClassPool& operator=(const SizeClassPool&) = delete;

  // 16-byte aligned; throws std::bad_alloc when the heap is exhausted.
  void* allocate(size_t num_bytes);
  void release(void* allocation, size_t num_bytes) noexcept;

 private:
  struct FreeAllocation {
    FreeAllocation* next;
  };
  static constexpr size_t kNumClasses = 12;  // 64 B … 128 KiB

  static size_t class_of(size_t num_bytes) noexcept;

  std::array<FreeAllocation*, kNumClasses> free_{};
};

}  // namespace axon
