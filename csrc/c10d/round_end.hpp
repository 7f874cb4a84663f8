// How a round of the rendezvous ended, or what its ranks do now: the entry that rank 0 leaves in the store for it. Its
// bytes are described in docs/wire.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/peer_address.hpp"

namespace axon::c10d_backend {

using Blob = std::vector<uint8_t>;

// Throws DistBackendError, which names the rank, if it cannot be read.
engine::PeerAddress decode_address(int rank, const Blob& blob);

struct RoundEnd {
  enum class Kind : uint8_t {
    kGroup = 'g',     // with a group: `addresses`
    kMove = 'm',      // all its ranks join `next_round`
    kExchange = 't',  // all ranks are there, and exchange their addresses over the tree; rank 0 has `root_address`
    kFormed = 'f',    // the tree has passed the addresses to all ranks
    kFailed = 'x',    // it could not, because of `reason`
  };

  Kind kind = Kind::kGroup;
  int64_t latest_group = 0;  // the latest earlier round that was neither moved nor left without an end; 0: none
  int64_t next_round = 0;
  std::vector<engine::PeerAddress> addresses{};  // by rank
  Blob root_address{};
  std::string reason{};

  Blob encode() const;
  // Throws DistBackendError if it cannot be read.
  static RoundEnd decode(const Blob& blob);
};

}  // namespace axon::c10d_backend
