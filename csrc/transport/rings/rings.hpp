// Carries messages between processes of one host through shared memory, on top of a transport that reaches all other
// peers.
//
//   std::unique_ptr<Transport> transport = with_rings(std::move(network), RingUse::kAlways);
//
// Peers need rings above their transports as well, whichever RingUse each of them has. The returned transport owns
// `network`; its thread rule is Transport's.
#pragma once

#include <cstdint>
#include <memory>

#include "transport/transport.hpp"

namespace axon::transport {

enum class RingUse : uint8_t {
  kAlways,
  kCopies,  // all payloads go through the rings; other processes' memory is not read
  kNever,
};

std::unique_ptr<Transport> with_rings(std::unique_ptr<Transport> network, RingUse use = RingUse::kAlways);

}  // namespace axon::transport
