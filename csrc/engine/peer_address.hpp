// What a process tells the other ranks about itself when a group forms: one small blob per rank, exchanged through the
// store.
//
//   std::vector<uint8_t> blob = peer_address.encode();
//   Result<PeerAddress> decoded = PeerAddress::decode(blob);
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.hpp"

namespace axon::engine {

struct PeerAddress {
  uint64_t key = 0;                   // random, fresh for every group formed: messages to this rank must carry it
  std::array<uint64_t, 2> process{};  // random, for the life of the process: identifies the peer across groups
  uint64_t host = 0;                  // equal for processes that may share memory: a claim (engine/host_beacon.hpp)
  int32_t pid = 0;                    // in the process's pid namespace
  std::vector<std::byte> transport_address;  // opaque to the engine

  std::vector<uint8_t> encode() const;
  // The upper half of the key, which it has in all instances.
  uint32_t series() const noexcept { return static_cast<uint32_t>(key >> 32); }
  // Returns the address in another instance of a group whose members change: with a key of the same series.
  PeerAddress in_instance(uint64_t number) const;
  // Rejects truncated blobs, foreign blobs and other versions; the error says which.
  static Result<PeerAddress> decode(std::span<const uint8_t> blob);
};

}  // namespace axon::engine
