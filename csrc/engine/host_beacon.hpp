// Proof that two processes share a kernel and a network namespace.
//
// An identity that both read somewhere proves nothing: machines cloned from one snapshot have the same boot id and the
// same namespace numbers. So each engine binds a socket to a random name in the kernel's abstract namespace, and
// another process looks whether it can address that name: it can exactly if it is there.
//
//   Result<HostBeacon> beacon = HostBeacon::light(peer_address.process);     // lit for as long as it lives
//   … HostBeacon::look_for(theirs.process) …                         // true: they are here, and alive
//
// Nothing is ever sent or received by these sockets. docs/adr/0032-prove-that-peers-share-a-host.md.
#pragma once

#include <array>
#include <cstdint>

#include "base/file_descriptor.hpp"
#include "base/status.hpp"

namespace axon::engine {

class HostBeacon {
 public:
  using Name = std::array<uint64_t, 2>;  // PeerAddress::process

  static Result<HostBeacon> light(const Name& name);

  // Whether a beacon of this name is lit in this process's kernel and network namespace. Fails where this process
  // cannot look, as when it has no descriptor left. Never blocks.
  static Result<bool> look_for(const Name& name);

 private:
  explicit HostBeacon(FileDescriptor socket) noexcept : socket_(std::move(socket)) {}

  FileDescriptor socket_;
};

}  // namespace axon::engine
