#include "gpu_comm/lost_ranks.hpp"

namespace axon::gpu_comm {

void LostRanks::connect(int index) noexcept {
  connected_ |= 1u << index;
  heed(index);
}

void LostRanks::note(int index, const Status& reason) noexcept {
  reasons_[static_cast<size_t>(index)] = reason.clone();
  heed(index);
}

void LostRanks::heed(int index) noexcept {
  if (!first_.ok() || !concerns_kernels(index)) return;
  first_ = reason_of(index).clone();
  first_lost_at_ = sync::Clock::now();
}

}  // namespace axon::gpu_comm
