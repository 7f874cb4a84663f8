// What a process tells the others about itself when a group forms: one small blob a rank, exchanged through the store.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.hpp"

namespace axon::engine {

struct PeerAddress {
  uint64_t key = 0;                   // random, fresh for every group formed: messages to this rank have to name it
  std::array<uint64_t, 2> process{};  // random, for the life of the process: the same peer in every group
  uint64_t host = 0;                  // equal for processes that may share memory: a claim (engine/host_beacon.hpp)
  int32_t pid = 0;                    // in that pid namespace
  std::vector<std::byte> transport_address;  // the transport's

  std::vector<uint8_t> encode() const;
  // Refuses truncated, foreign and other-version blobs, saying which.
  static Result<PeerAddress> decode(std::span<const uint8_t> blob);
};

}  // namespace axon::engine
