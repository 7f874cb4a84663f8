#include "gpu_comm/pinned_pool.hpp"

#include <algorithm>
#include <bit>

#include "cuda/capture.hpp"
#include "cuda/device.hpp"

namespace axon::gpu_comm {

// Never destroyed: CUDA may be shut down earlier when the process exits.
PinnedPool& PinnedPool::current() {
  static auto* mutex = new std::mutex;
  static auto* pools = new std::map<int, PinnedPool>;
  const std::lock_guard lock(*mutex);
  return (*pools)[cuda::current_device()];
}

std::optional<PinnedPool::Allocation> PinnedPool::find(size_t num_bytes) {
  const std::lock_guard lock(mutex_);
  const auto [first, last] = resting_.equal_range(num_bytes);
  const auto found = first;  // the oldest one: if its last use has not passed, the others' has probably not either
  if (found == last || !found->second.last_use.view().has_passed()) return std::nullopt;
  Allocation allocation = std::move(found->second);
  resting_.erase(found);
  return allocation;
}

// Few sizes, so that allocations are used again, of which at most an eighth is wasted.
size_t PinnedPool::rounded_up(size_t num_bytes) noexcept {
  const size_t step = std::max(kSmallestAllocation, std::bit_floor(num_bytes) / 8);
  return (num_bytes + step - 1) / step * step;
}

Result<PinnedPool::Allocation> PinnedPool::take(size_t num_bytes) {
  const cuda::RelaxedCapture beside_captures;
  const size_t rounded = rounded_up(num_bytes);
  if (std::optional<Allocation> allocation = find(rounded)) return *std::move(allocation);
  Result<cuda::PinnedMemory> memory = cuda::PinnedMemory::allocate(rounded);
  if (!memory.ok()) return std::move(memory.status());
  Result<cuda::Event> event = cuda::Event::create_untimed();
  if (!event.ok()) return std::move(event.status());
  return Allocation{std::move(memory).value(), rounded, std::move(event).value()};
}

Result<std::shared_ptr<PinnedBlock>> PinnedBlock::take(size_t num_bytes) {
  PinnedPool& pool = PinnedPool::current();
  Result<PinnedPool::Allocation> allocation = pool.take(num_bytes);
  if (!allocation.ok()) return std::move(allocation.status());
  return std::shared_ptr<PinnedBlock>(new PinnedBlock(pool, std::move(allocation).value()));
}

void PinnedPool::give_back(Allocation allocation) {
  const std::lock_guard lock(mutex_);
  const size_t num_bytes = allocation.num_bytes;
  resting_.emplace(num_bytes, std::move(allocation));
}

}  // namespace axon::gpu_comm
