#include "transport/rails/rail_route.hpp"

#include <ifaddrs.h>
#include <sys/socket.h>

#include <memory>

#include "transport/rails/rail_address.hpp"

namespace axon::transport {

static std::string device_with(const IpAddress& address) {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return "unknown device";
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> interfaces(first, &freeifaddrs);
  for (const ifaddrs* each = interfaces.get(); each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr != nullptr && ip_address(*each->ifa_addr) == address) return each->ifa_name;
  }
  return "unknown device";
}

std::string route_of(const FileDescriptor& socket) {
  SystemAddress own;
  SystemAddress other;
  own.num_bytes = other.num_bytes = sizeof own.storage;
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own.storage), &own.num_bytes);
  getpeername(socket.get(), reinterpret_cast<sockaddr*>(&other.storage), &other.num_bytes);
  const std::string to = text_of(ip_address(*other.get()), 0);
  return device_with(ip_address(*own.get())) + " to " + to.substr(0, to.rfind(':'));
}

}  // namespace axon::transport
