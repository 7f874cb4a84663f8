// Address of a listener, as bytes to hand to another process. A process that has them may connect: their secret is the
// listener's address_key(), never the secret that its user chose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "rpc/core/handshake/secret.hpp"

namespace axon::rpc {

// Returns the key that a listener with this secret puts into its addresses. `place` is the host and port at which it
// listens, as text.
Secret address_key_of(const Secret& secret, const std::string& place);

struct ListenerAddress {
  static constexpr size_t kMostHostBytes = 255;

  std::string host;
  uint16_t port = 0;
  Secret secret;

  std::vector<std::byte> encode() const;
  static Result<ListenerAddress> decode(std::span<const std::byte> bytes);
};

}  // namespace axon::rpc
