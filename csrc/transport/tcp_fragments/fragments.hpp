// Sends long messages over TCP as fragments that are each sent at once, on top of a transport that would send each
// message in one write.
//
//   std::unique_ptr<Transport> transport = with_fragments(std::move(network));
//
// The network sends up to 64 KiB at once. Peers need this layer above their transports as well, whichever FragmentUse
// each of them has. The returned transport owns `network`; its thread rule is Transport's. Why:
// docs/adr/0027-send-long-messages-over-tcp-in-fragments.md.
#pragma once

#include <cstdint>
#include <memory>

#include "transport/transport.hpp"

namespace axon::transport {

// The peers to which fragments are sent. Every peer understands the fragments that it receives.
enum class FragmentUse : uint8_t {
  kNever,
  kToOtherHosts,  // where all lanes are TCP
  kToAll,
};

std::unique_ptr<Transport> with_fragments(std::unique_ptr<Transport> network, FragmentUse use);

}  // namespace axon::transport
