#include "transport/rails/rail_route.hpp"

#include <sys/socket.h>

#include "transport/rails/rail_address.hpp"

namespace axon::transport {

std::string route_of(const FileDescriptor& socket) {
  SystemAddress own;
  SystemAddress other;
  own.num_bytes = other.num_bytes = sizeof own.storage;
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own.storage), &own.num_bytes);
  getpeername(socket.get(), reinterpret_cast<sockaddr*>(&other.storage), &other.num_bytes);
  const std::string device = device_with(ip_address(*own.get()));
  return (device.empty() ? "unknown device" : device) + " to " + text_of(ip_address(*other.get()));
}

}  // namespace axon::transport
