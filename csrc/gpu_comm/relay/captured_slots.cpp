#include "gpu_comm/relay/captured_slots.hpp"

#include <algorithm>

namespace axon::gpu_comm {

// Earlier collectives keep the smaller blocks, which take at most as much as the largest one.
Result<std::shared_ptr<PinnedBlock>> CapturedSlots::take(uint64_t capture, cuda::StreamView stream, size_t num_bytes) {
  std::erase_if(blocks_, [](const auto& block) { return block.second.expired(); });
  std::weak_ptr<PinnedBlock>& latest = blocks_[{capture, stream.get()}];
  const std::shared_ptr<PinnedBlock> known = latest.lock();
  if (known != nullptr && known->num_bytes() >= num_bytes) return known;
  const size_t least = known == nullptr ? 0 : 2 * known->num_bytes();
  Result<std::shared_ptr<PinnedBlock>> made = PinnedBlock::take(std::max(num_bytes, least));
  if (made.ok()) latest = made.value();
  return made;
}

}  // namespace axon::gpu_comm
