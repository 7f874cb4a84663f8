// TCP sockets: how this process opens them, their options and their errors. Any thread.
//
//   FileDescriptor socket = open_tcp_socket(AF_INET);
//   send_at_once(socket);
#pragma once

#include <cstdint>
#include <string>

#include "base/file_descriptor.hpp"

namespace axon {

// Owns a socket that the system has just opened, and keeps it from forked children. A copy would hold the connection,
// or the port, after this process has ended. For −1 it returns an invalid descriptor and keeps errno.
FileDescriptor withheld(int socket);
// Opens a withheld socket that does not block, of the address family AF_INET or AF_INET6.
FileDescriptor open_tcp_socket(int family);

// Returns the port to which the socket is bound.
uint16_t port_of(const FileDescriptor& socket) noexcept;

// Sets an integer option, which the system may ignore.
void set_option(const FileDescriptor& socket, int level, int option, int value = 1) noexcept;

// Disables Nagle's algorithm, for small messages that must leave at once.
void send_at_once(const FileDescriptor& socket) noexcept;

// Enables keep-alive: a host that disappears silently shows as a hang-up after 11 s, also while nothing is sent. With
// data on the way, transport/rails/silence.hpp takes as long.
void watch_for_silence(const FileDescriptor& socket) noexcept;

// Returns the name of the algorithm that the system has chosen for the socket's congestion control: "cubic", "bbr".
std::string congestion_control_of(const FileDescriptor& socket);

// Returns zero once a connection that began without blocking is established; otherwise the error, as in errno.
int error_of(const FileDescriptor& socket) noexcept;

// Returns whether a call that failed with this errno may succeed later: the socket would block, a signal came, or the
// kernel has no memory for it just now.
bool may_go_on(int error) noexcept;

// Describes errno.
std::string last_error();

}  // namespace axon
