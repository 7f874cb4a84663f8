// A process group as the engine sees it: which peer stands behind each rank.
#pragma once

#include <cstdint>
#include <vector>

#include "transport/transport.hpp"

namespace axon {

struct Team {
  uint64_t group = 0;  // the incarnation's id, equal on all ranks
  int rank = 0;
  std::vector<PeerId> peers;  // by rank; this rank's own entry leads back to this process

  int size() const noexcept { return static_cast<int>(peers.size()); }
};

}  // namespace axon
