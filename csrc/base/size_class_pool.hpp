// Blocks of memory by power-of-two size, kept for reuse: coroutine frames, request nodes, unexpected payloads of up to
// 64 KiB with what stands before them.
//
// After warm-up allocate() and release() touch no heap. One owner at a time: used only by the holder of the engine's
// progress token, hence no lock. Blocks above kLargestBlock come from the heap each time.
#pragma once

#include <array>
#include <cstddef>

namespace axon {

class BlockPool {
 public:
  static constexpr size_t kSmallestBlock = 64;
  static constexpr size_t kLargestBlock = size_t{1} << 17;

  BlockPool() = default;
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // 16-byte aligned; throws std::bad_alloc when the heap is exhausted.
  void* allocate(size_t num_bytes);
  void release(void* block, size_t num_bytes) noexcept;

 private:
  struct FreeBlock {
    FreeBlock* next;
  };
  static constexpr size_t kNumClasses = 12;  // 64 B … 128 KiB

  static size_t class_of(size_t num_bytes) noexcept;

  std::array<FreeBlock*, kNumClasses> free_{};
};

}  // namespace axon
