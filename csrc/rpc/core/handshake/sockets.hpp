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
  std::string host;  // a name, or an address of IPv4 or IPv6
  uint16_t port = 0;

  std::string text() const;  // "host:port"
};

// Owns a socket that the system has just opened, and keeps it from forked children: a copy would hold the connection,
// or the port, after this process has ended. Of -1 an invalid one; errno stays.
FileDescriptor withheld(int socket);

// Names are asked for at the system's resolver, for as long as the deadline allows, or 60 s where there is none.
Result<bool> is_loopback(const std::string& host);

// Port 0: one that is free. Never blocks afterwards.
Result<FileDescriptor> listen_at(const SocketAddress& socket_address, int backlog);
uint16_t port_of(const FileDescriptor& socket) noexcept;

// Tries all addresses of the host in turn. Never blocks afterwards.
Result<FileDescriptor> connect_to(const SocketAddress& socket_address, sync::Clock::time_point deadline);

// Frames of a handshake are small, and leave at once.
void send_at_once(const FileDescriptor& socket) noexcept;

// From now on a host that has gone without a word shows as a hang-up, after half a minute.
void watch_for_silence(const FileDescriptor& socket) noexcept;

// False when the deadline has passed, or interrupts are pending. `events` as poll() has them.
bool wait_for(const FileDescriptor& socket, short events, sync::Clock::time_point deadline) noexcept;

std::string last_error();

}  // namespace axon::rpc
