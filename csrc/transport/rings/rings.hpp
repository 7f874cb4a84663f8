// Messages between processes of one host through memory that they share, above a transport that reaches everybody else.
//
//   std::unique_ptr<Transport> transport = with_rings(std::move(network), RingUse::kAlways);
//
// Peers need the same above them, whatever their use of it.
#pragma once

#include <cstdint>
#include <memory>

#include "transport/transport.hpp"

namespace axon::transport {

enum class RingUse : uint8_t {
  kAlways,
  kCopies,  // all through the rings: other processes' memory is not read
  kNever,
};

std::unique_ptr<Transport> with_rings(std::unique_ptr<Transport> network, RingUse use = RingUse::kAlways);

}  // namespace axon::transport
