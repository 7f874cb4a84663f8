#include "base/tcp_socket.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <system_error>

namespace axon {

FileDescriptor withheld(int socket) {
  FileDescriptor owned(socket);
  if (owned.valid()) owned.withhold_from_forks();
  return owned;
}

FileDescriptor open_tcp_socket(int family) {
  return withheld(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

uint16_t port_of(const FileDescriptor& socket) noexcept {
  sockaddr_storage address{};
  socklen_t num_bytes = sizeof address;
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &num_bytes);
  const bool is_ipv6 = address.ss_family == AF_INET6;
  return ntohs(is_ipv6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                       : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

void set_option(const FileDescriptor& socket, int level, int option, int value) noexcept {
  setsockopt(socket.get(), level, option, &value, sizeof value);
}

void send_at_once(const FileDescriptor& socket) noexcept {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY);
}

void watch_for_silence(const FileDescriptor& socket) noexcept {
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

int error_of(const FileDescriptor& socket) noexcept {
  int error = 0;
  socklen_t num_bytes = sizeof error;
  getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &num_bytes);
  return error;
}

std::string congestion_control_of(const FileDescriptor& socket) {
  std::array<char, 16> name{};  // TCP_CA_NAME_MAX
  socklen_t num_bytes = name.size() - 1;
  getsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, name.data(), &num_bytes);
  return name.data();
}

bool may_go_on(int error) noexcept {
  return error == EAGAIN || error == EINTR || error == ENOBUFS || error == ENOMEM;
}

std::string last_error() {
  return std::generic_category().message(errno);
}

}  // namespace axon
