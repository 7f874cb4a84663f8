// A process group as the engine sees it: which peer stands behind each rank.
#pragma once

#include <cstdint>
#include <vector>

#include "transport/transport.hpp"

namespace axon::messaging {

struct Team {
  int rank = 0;
  std::vector<transport::PeerId> peers;  // by rank; this rank's own entry leads back to this process
  std::vector<uint64_t> keys;            // by rank: what a message to it has to name
  std::vector<bool> shares_host{};       // by rank: whether it has proven to be on this rank's host
  // Whether all addresses name one host, for the choice of algorithms, in which all ranks must agree. Proofs may differ
  // by rank, as when one of them has just ended.
  bool on_one_host = true;

  int size() const noexcept { return static_cast<int>(peers.size()); }
  uint64_t own_key() const noexcept { return keys[static_cast<size_t>(rank)]; }
};

}  // namespace axon::messaging
