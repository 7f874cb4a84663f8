// The ranks of a group on this rank's host. They are the team of its kernels, which know them by local index.
//
//   const LocalTeam team(communicator.topology(), communicator.rank());   // rank 2 of the hosts A, B, A
//   team.size();         // 2
//   team.index();        // 1
//   team.rank_of(0);     // 0
//   team.index_of(1);    // −1: on another host
//
// Immutable.
#pragma once

#include <vector>

#include "messaging/topology.hpp"

namespace axon::gpu_comm {

class LocalTeam {
 public:
  LocalTeam(const messaging::Topology& topology, int rank);

  int size() const noexcept { return static_cast<int>(ranks_.size()); }
  // Returns this rank's local index.
  int index() const noexcept { return index_; }
  // Returns the rank in the group.
  int rank_of(int index) const noexcept { return ranks_[static_cast<size_t>(index)]; }
  // Returns the local index of a rank in the group; −1 if it is on another host.
  int index_of(int rank) const noexcept;

 private:
  std::vector<int> ranks_;  // by local index, ascending
  int index_;
};

}  // namespace axon::gpu_comm
