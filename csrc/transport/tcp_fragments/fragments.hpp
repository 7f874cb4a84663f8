// Long messages over TCP in fragments that are each sent at once, above a transport that would send them in one write.
//
//   std::unique_ptr<Transport> transport = with_fragments(std::move(network));
//
// The network sends up to 64 KiB at once. Peers need the same above them, whatever their use of it. Why:
// docs/adr/0027-send-long-messages-over-tcp-in-fragments.md.
#pragma once

#include <cstdint>
#include <memory>

#include "transport/transport.hpp"

namespace axon::transport {

// To whom they are sent; whoever sends some is understood.
enum class FragmentUse : uint8_t {
  kNever,
  kToOtherHosts,  // where all lanes are TCP
  kToAll,
};

std::unique_ptr<Transport> with_fragments(std::unique_ptr<Transport> network, FragmentUse use);

}  // namespace axon::transport
