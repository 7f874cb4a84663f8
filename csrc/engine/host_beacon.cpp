#include "engine/host_beacon.hpp"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

namespace axon::engine {

namespace {

struct Address {
  sockaddr_un value{};
  socklen_t num_bytes = 0;

  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&value); }
};

// A name that begins with a zero byte belongs to no file.
Address address_of(const HostBeacon::Name& name) noexcept {
  Address address;
  address.value.sun_family = AF_UNIX;
  const int length =
      std::snprintf(address.value.sun_path + 1, sizeof address.value.sun_path - 1, "torch_axon.%016llx%016llx",
                    static_cast<unsigned long long>(name[0]), static_cast<unsigned long long>(name[1]));
  address.num_bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length));
  return address;
}

Status failed(const char* call) {
  return {ErrorCode::kResourceExhausted, std::string(call) + ": " + std::generic_category().message(errno)};
}

Result<FileDescriptor> open_socket() {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return failed("socket of a host beacon");
  return socket;
}

}  // namespace

// Withheld from forks: a forked child would keep the name after its parent has ended.
Result<HostBeacon> HostBeacon::light(const Name& name) {
  Result<FileDescriptor> socket = open_socket();
  if (!socket.ok()) return std::move(socket.status());
  socket.value().withhold_from_forks();
  const Address address = address_of(name);
  if (::bind(socket.value().get(), address.get(), address.num_bytes) != 0) return failed("bind of a host beacon");
  ::shutdown(socket.value().get(), SHUT_RD);  // datagrams to it are refused
  return HostBeacon(std::move(socket).value());
}

// connect() of a datagram socket involves this process alone: the other one does nothing.
Result<bool> HostBeacon::look_for(const Name& name) {
  Result<FileDescriptor> socket = open_socket();
  if (!socket.ok()) return std::move(socket.status());
  const Address address = address_of(name);
  if (::connect(socket.value().get(), address.get(), address.num_bytes) == 0) return true;
  if (errno == ECONNREFUSED) return false;
  return failed("connect to a host beacon");
}

}  // namespace axon::engine
