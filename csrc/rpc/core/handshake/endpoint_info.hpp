// What the two ends of a connection exchange after both have proved that they know the secret.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.hpp"

namespace axon::rpc {

struct EndpointInfo {
  static constexpr size_t kMostNameBytes = 255;
  static constexpr size_t kMostAddressBytes = 8192;

  std::string name;                // of the runtime: 1 to 255 bytes without control characters
  uint64_t incarnation = 0;        // random, fixed for the life of the runtime; a restarted one has another
  uint64_t key = 0;                // random, for this connection: messages to this end must carry it
  std::vector<std::byte> address;  // the engine's peer address

  bool operator==(const EndpointInfo&) const = default;

  // Names and addresses of other sizes are errors.
  Result<std::vector<std::byte>> encode() const;
  static Result<EndpointInfo> decode(std::span<const std::byte> bytes);
};

}  // namespace axon::rpc
