// Allocations by power-of-two size, kept for reuse: coroutine frames, request nodes, unexpected payloads of up to
// 64 KiB with what stands before them.
//
// After warm-up allocate() and release() touch no heap. One owner at a time: used only by the holder of the engine's
// progress token, hence no lock. Larger ones than kLargestAllocation come from the heap each time.
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
