// Rings of short messages between processes of one host, above a transport that reaches everybody.
//
//   std::unique_ptr<Transport> transport = with_rings(std::move(network), RingUse::kShortMessages);
//
// Peers need the same above them, whatever their use of it.
#pragma once

#include <cstdint>
#include <memory>

#include "transport/transport.hpp"

namespace axon {

enum class RingUse : uint8_t { kShortMessages, kNever };

std::unique_ptr<Transport> with_rings(std::unique_ptr<Transport> network, RingUse use = RingUse::kShortMessages);

}  // namespace axon
