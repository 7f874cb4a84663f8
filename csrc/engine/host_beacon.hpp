// Proof that two processes share a kernel and a network namespace.
//
// An identity that both processes read proves nothing: machines cloned from one snapshot have the same boot id and the
// same namespace numbers. So each engine binds a socket to a random name in the kernel's abstract namespace. Another
// process can connect to that name exactly if it shares the kernel and the network namespace.
//
//   Result<HostBeacon> beacon = HostBeacon::light(peer_address.process);   // the name exists while `beacon` lives
//   Result<bool> is_here = HostBeacon::look_for(theirs.process);           // true: the process is here, and alive
//
// Nothing is ever sent or received through these sockets. docs/adr/0032-prove-that-peers-share-a-host.md.
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

  // Returns whether a beacon of this name exists in this process's kernel and network namespace. Fails if this process
  // cannot check, for example if no file descriptor is left. Never blocks.
  static Result<bool> look_for(const Name& name);

 private:
  explicit HostBeacon(FileDescriptor socket) noexcept : socket_(std::move(socket)) {}

  FileDescriptor socket_;
};

}  // namespace axon::engine
