// The connecting end of a first handshake.
#pragma once

#include "base/file_descriptor.hpp"
#include "base/status.hpp"
#include "base/sync.hpp"
#include "rpc/core/handshake/endpoint_info.hpp"
#include "rpc/core/handshake/secret.hpp"
#include "rpc/core/handshake/sockets.hpp"

namespace axon::rpc {

// Two runtimes know each other. Nothing is sent over the socket any more: it hangs up when the other end is gone.
struct Connected {
  EndpointInfo peer;
  FileDescriptor socket;
};

// Blocks the calling thread, until the deadline or an interrupt (kCancelled). Errors name the address and say what was
// wrong: kTransport (nobody listens, hung up, no runtime), kTimeout, kMismatch (version), kUnauthenticated (secret),
// kUnknownHost, or what the listener refused with.
Result<Connected> connect_to_listener(const SocketAddress& socket_address, const Secret& secret,
                                      const EndpointInfo& own, sync::Clock::time_point deadline);

}  // namespace axon::rpc
