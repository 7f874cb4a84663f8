// A process group as the engine sees it: the peer process of each rank. Immutable after the group is formed.
#pragma once

#include <cstdint>
#include <vector>

#include "messaging/topology.hpp"
#include "transport/transport.hpp"

namespace axon::messaging {

struct Team {
  // In a larger group, two ranks connect only when a message is due between them (engine/overlay.hpp).
  static constexpr int kMostFullyConnected = 32;

  int rank = 0;
  std::vector<transport::PeerId> peers;  // by rank; this rank's own entry is this process
  std::vector<uint64_t> keys;            // by rank: the key that a message to it must carry
  std::vector<bool> shares_host{};       // by rank: whether it has proven to be on this rank's host
  Topology topology{};                   // the choice of algorithms uses it, since all ranks agree on it

  bool has_rails = false;  // rails speed up long messages between all hosts; all ranks agree on it

  static constexpr bool is_fully_connected(int size) noexcept { return size <= kMostFullyConnected; }
  bool is_fully_connected() const noexcept { return is_fully_connected(size()); }

  int size() const noexcept { return static_cast<int>(peers.size()); }
  uint64_t own_key() const noexcept { return keys[static_cast<size_t>(rank)]; }
};

}  // namespace axon::messaging
