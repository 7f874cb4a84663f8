// The connecting end of a first handshake.
#pragma once

#include "base/file_descriptor.hpp"
#include "base/status.hpp"
#include "base/sync.hpp"
#include "rpc/core/handshake/endpoint_info.hpp"
#include "rpc/core/handshake/secret.hpp"
#include "rpc/core/handshake/sockets.hpp"

namespace axon::rpc {

// The result of a handshake between two runtimes. The socket carries no more data; it hangs up when the peer is gone.
struct Connected {
  EndpointInfo peer;
  FileDescriptor socket;
};

// Blocks the calling thread until the deadline or an interrupt (kCancelled). Errors name the address and the cause:
// kTransport (no listener, hung up, not a runtime), kTimeout, kMismatch (version), kUnauthenticated (secret),
// kUnknownHost, or the listener's reason for a refusal.
Result<Connected> connect_to_listener(const SocketAddress& socket_address, const Secret& secret,
                                      const EndpointInfo& own, sync::Clock::time_point deadline);

}  // namespace axon::rpc
