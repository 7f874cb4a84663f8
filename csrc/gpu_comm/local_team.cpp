#include "gpu_comm/local_team.hpp"

#include <algorithm>

namespace axon::gpu_comm {

LocalTeam::LocalTeam(const messaging::Topology& topology, int rank) : index_(topology.local_index_of(rank)) {
  const std::span<const int> ranks = topology.ranks_on(topology.host_of(rank));
  ranks_.assign(ranks.begin(), ranks.end());
}

int LocalTeam::index_of(int rank) const noexcept {
  const auto found = std::ranges::lower_bound(ranks_, rank);
  return found != ranks_.end() && *found == rank ? static_cast<int>(found - ranks_.begin()) : -1;
}

}  // namespace axon::gpu_comm
