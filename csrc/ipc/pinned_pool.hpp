// Pinned host memory that is used again, since allocating it takes the driver's locks and may wait for a busy device.
// None is freed: that waits for the device, too. So the process keeps as much as it has used at a time.
//
//   Result<PinnedPool::Piece> piece = PinnedPool::instance().take(num_bytes);   // goes back when it is destroyed
//
// Thread-safe. All devices of the process use the memory at the same address.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "base/status.hpp"
#include "cuda/memory.hpp"

namespace axon::ipc {

class PinnedPool {
 public:
  class Piece {
   public:
    Piece(Piece&& other) noexcept
        : pool_(std::exchange(other.pool_, nullptr)), memory_(std::move(other.memory_)), num_bytes_(other.num_bytes_) {}
    Piece& operator=(Piece&&) = delete;
    // Nothing uses the memory any more.
    ~Piece() {
      if (pool_ != nullptr) pool_->give_back(std::move(memory_), num_bytes_);
    }
    std::byte* data() const noexcept { return memory_.data(); }
    size_t num_bytes() const noexcept { return num_bytes_; }

   private:
    friend class PinnedPool;
    Piece(PinnedPool& pool, cuda::PinnedMemory memory, size_t num_bytes) noexcept
        : pool_(&pool), memory_(std::move(memory)), num_bytes_(num_bytes) {}

    PinnedPool* pool_;  // null after a move
    cuda::PinnedMemory memory_;
    size_t num_bytes_;
  };

  // Never destroyed: streams may use the memory until the process exits.
  static PinnedPool& instance();

  // Some device is current. May wait for it, so callers hold no lock that others need to launch.
  Result<Piece> take(size_t num_bytes);
  // Returns nothing if memory of this size would have to be allocated.
  std::optional<Piece> take_resting(size_t num_bytes);

 private:
  static constexpr size_t kSmallest = 4096;

  static size_t rounded_up(size_t num_bytes) noexcept;
  void give_back(cuda::PinnedMemory memory, size_t num_bytes) noexcept;

  std::mutex mutex_;                                   // guards the following members
  std::multimap<size_t, cuda::PinnedMemory> resting_;  // by size, a power of two
};

}  // namespace axon::ipc
