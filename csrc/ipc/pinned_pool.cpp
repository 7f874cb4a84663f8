#include "ipc/pinned_pool.hpp"

#include <algorithm>
#include <bit>

#include "cuda/capture.hpp"

namespace axon::ipc {

PinnedPool& PinnedPool::instance() {
  static auto* const pool = new PinnedPool;
  return *pool;
}

size_t PinnedPool::rounded_up(size_t num_bytes) noexcept {
  return std::bit_ceil(std::max(num_bytes, kSmallest));
}

std::optional<PinnedPool::Piece> PinnedPool::take_resting(size_t num_bytes) {
  const size_t rounded = rounded_up(num_bytes);
  const std::lock_guard lock(mutex_);
  auto found = resting_.extract(rounded);
  if (found.empty()) return std::nullopt;
  return Piece(*this, std::move(found.mapped()), rounded);
}

Result<PinnedPool::Piece> PinnedPool::take(size_t num_bytes) {
  if (std::optional<Piece> resting = take_resting(num_bytes)) return *std::move(resting);
  const size_t rounded = rounded_up(num_bytes);
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
