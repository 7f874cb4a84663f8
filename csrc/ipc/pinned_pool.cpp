#include "ipc/pinned_pool.hpp"

#include <algorithm>
#include <bit>

#include "cuda/capture.hpp"

namespace axon::ipc {

PinnedPool& PinnedPool::instance() {
  static auto* const pool = new PinnedPool;
  return *pool;
}

Result<PinnedPool::Piece> PinnedPool::take(size_t num_bytes) {
  const size_t rounded = std::bit_ceil(std::max(num_bytes, kSmallest));
  {
    const std::lock_guard lock(mutex_);
    if (auto found = resting_.extract(rounded); !found.empty()) {
      return Piece(*this, std::move(found.mapped()), rounded);
    }
  }
  const cuda::RelaxedCapture beside_captures;
  Result<cuda::PinnedMemory> memory = cuda::PinnedMemory::allocate(rounded);
  if (!memory.ok()) return std::move(memory.status());
  return Piece(*this, std::move(memory).value(), rounded);
}

void PinnedPool::give_back(cuda::PinnedMemory memory, size_t num_bytes) noexcept {
  const std::lock_guard lock(mutex_);
  resting_.emplace(num_bytes, std::move(memory));
}

}  // namespace axon::ipc
