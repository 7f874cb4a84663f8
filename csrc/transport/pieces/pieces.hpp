// Long messages over TCP in pieces that are each sent at once, above a transport that would send them in one write.
//
//   std::unique_ptr<Transport> transport = with_pieces(std::move(network));
//
// Peers need the same above them, whatever their use of it. Why: docs/adr/long-messages-over-tcp-go-in-pieces.md.
#pragma once

#include <cstdint>
#include <memory>

#include "transport/transport.hpp"

namespace axon {

enum class PieceUse : uint8_t {
  kNever,    // only received
  kOverTcp,  // sent to peers that all lanes reach by TCP
  kAlways,
};

// Whether this host's TCP paces what it sends by an estimate of the link's speed (bbr), as seen in this network
// namespace.
bool tcp_estimates_links();

std::unique_ptr<Transport> with_pieces(std::unique_ptr<Transport> network, PieceUse use);

}  // namespace axon
