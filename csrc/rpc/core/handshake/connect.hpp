// The connecting end of a first handshake.
#pragma once

#include <utility>

#include "base/file_descriptor.hpp"
#include "base/status.hpp"
#include "base/sync.hpp"
#include "rpc/core/handshake/endpoint_info.hpp"
#include "rpc/core/handshake/handshake.hpp"
#include "rpc/core/handshake/secret.hpp"
#include "rpc/core/handshake/sockets.hpp"

namespace axon::rpc {

// The result of a handshake between two runtimes. The socket carries no more data; it hangs up when the peer is gone.
struct Connected {
  EndpointInfo peer;
  FileDescriptor socket;
};

// A listener that has proved that it knows the secret, and does not know the connector yet.
//
// Both steps block the calling thread until the deadline or an interrupt (kCancelled). Errors name the address and the
// cause: kTransport (no listener, hung up, not a runtime), kTimeout, kMismatch (version), kUnauthenticated (secret),
// kUnknownHost, or the listener's reason for a refusal.
class FoundListener {
 public:
  static Result<FoundListener> find(const SocketAddress& socket_address, const Secret& secret, const EndpointInfo& own,
                                    sync::Clock::time_point deadline);

  const ListenerIdentity& identity() const noexcept { return *handshake_.listener(); }
  // Becomes a peer of the listener's runtime. Without this, the listener forgets the connection.
  Result<Connected> connect(sync::Clock::time_point deadline) &&;

 private:
  FoundListener(SocketAddress socket_address, Handshake handshake, FileDescriptor socket) noexcept
      : socket_address_(std::move(socket_address)), handshake_(std::move(handshake)), socket_(std::move(socket)) {}

  // Sends the next frame, and takes the answer.
  Status advance(sync::Clock::time_point deadline);
  Status failure() const;

  SocketAddress socket_address_;
  Handshake handshake_;
  FileDescriptor socket_;
};

}  // namespace axon::rpc
