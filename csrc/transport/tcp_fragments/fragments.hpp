// Long messages over TCP in pieces that are each sent at once, above a transport that would send them in one write.
//
//   std::unique_ptr<Transport> transport = with_pieces(std::move(network));
//
// The network sends up to 64 KiB at once. Peers need the same above them, whatever their use of it. Why:
// docs/adr/long-messages-over-tcp-go-in-pieces.md.
#pragma once

#include <cstdint>
#include <memory>

#include "transport/transport.hpp"

namespace axon {

// To whom they are sent; whoever sends some is understood.
enum class PieceUse : uint8_t {
  kNever,
  kToOtherHosts,  // where all lanes are TCP
  kToAll,
};

std::unique_ptr<Transport> with_pieces(std::unique_ptr<Transport> network, PieceUse use);

}  // namespace axon
