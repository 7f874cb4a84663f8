#include "gpu_comm/lost_ranks.hpp"

namespace axon::gpu_comm {

void LostRanks::connect(int rank) noexcept {
  connected_ |= 1u << rank;
  heed(rank);
}

void LostRanks::note(int rank, const Status& reason) noexcept {
  reasons_[static_cast<size_t>(rank)] = reason.clone();
  heed(rank);
}

void LostRanks::heed(int rank) noexcept {
  if (!first_.ok() || !concerns_kernels(rank)) return;
  first_ = reason_of(rank).clone();
  first_lost_at_ = sync::Clock::now();
}

}  // namespace axon::gpu_comm
