// TCP sockets for handshakes: opened, connected and waited for, with errors that say where and why.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/file_descriptor.hpp"
#include "base/status.hpp"
#include "base/sync.hpp"

namespace axon::rpc {

struct SocketAddress {
  std::string host;  // a name, or an IPv4 or IPv6 address
  uint16_t port = 0;

  std::string text() const;  // "host:port"
};

// Resolves names with the system's resolver, until the deadline, or for 60 s if there is no deadline.
Result<bool> is_loopback(const std::string& host);

// Port 0 picks a free port. The socket is non-blocking.
Result<FileDescriptor> listen_at(const SocketAddress& socket_address, int backlog);

// Tries all addresses of the host in order. The socket is non-blocking.
Result<FileDescriptor> connect_to(const SocketAddress& socket_address, sync::Clock::time_point deadline);

// Returns false when the deadline has passed or interrupts are pending. `events` are those of poll().
bool wait_for(const FileDescriptor& socket, short events, sync::Clock::time_point deadline) noexcept;

}  // namespace axon::rpc
