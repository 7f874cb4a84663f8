#include "transport/rails/rail_address.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/file_descriptor.hpp"

namespace axon::transport {

namespace {

// The prefix of IPv4 addresses that are mapped into IPv6.
constexpr size_t kPrefixBytes = 12;

struct Packed {
  uint64_t name = 0;
  RailToken token{};
  uint16_t port = 0;
  uint8_t takes_turns = 0;
  uint8_t num_addresses = 0;
  uint16_t most_processes = 0;
  uint16_t reserved = 0;
};
static_assert(sizeof(Packed) == 32);

bool is_mapped(const IpAddress& address) noexcept {
  return std::equal(address.begin(), address.begin() + kPrefixBytes, kAnyIpv4.begin());
}

}  // namespace

Result<RailAddress> RailAddress::of_devices(std::span<const std::string> devices, uint64_t name) {
  RailAddress address{.name = name,
                      .token = random_token(),
                      .takes_turns = !devices.empty(),
                      .addresses = addresses_of_devices(devices)};
  if (!address.addresses.empty()) return address;
  if (devices.empty()) return Status(ErrorCode::kTransport, "no device of this host is up");
  std::string names;
  for (const std::string& device : devices) names += (names.empty() ? "" : ", ") + device;
  return Status(ErrorCode::kTransport, "none of the devices is up: " + names);
}

std::vector<std::byte> RailAddress::encode() const {
  const Packed packed{.name = name,
                      .token = token,
                      .port = port,
                      .takes_turns = takes_turns ? uint8_t{1} : uint8_t{0},
                      .num_addresses = static_cast<uint8_t>(addresses.size()),
                      .most_processes = most_processes};
  const auto fixed = std::as_bytes(std::span(&packed, 1));
  std::vector<std::byte> bytes(fixed.begin(), fixed.end());
  for (const IpAddress& address : addresses) bytes.insert(bytes.end(), address.begin(), address.end());
  return bytes;
}

Result<RailAddress> RailAddress::decode(std::span<const std::byte> packed) {
  Packed fixed;
  if (packed.size() < sizeof fixed) {
    return Status(ErrorCode::kInvalidArgument,
                  "not the address of rails: " + std::to_string(packed.size()) + " bytes, expected at least 32");
  }
  std::memcpy(&fixed, packed.data(), sizeof fixed);
  const size_t num_addresses = fixed.num_addresses;
  const bool is_valid = num_addresses <= kMostAddresses && fixed.takes_turns <= 1 && fixed.reserved == 0;
  if (!is_valid || packed.size() != sizeof fixed + num_addresses * sizeof(IpAddress)) {
    return Status(ErrorCode::kInvalidArgument, "not the address of rails: " + std::to_string(packed.size()) +
                                                   " bytes for " + std::to_string(num_addresses) + " addresses");
  }
  RailAddress address{.name = fixed.name,
                      .token = fixed.token,
                      .port = fixed.port,
                      .takes_turns = fixed.takes_turns == 1,
                      .most_processes = fixed.most_processes,
                      .addresses = std::vector<IpAddress>(num_addresses)};
  std::ranges::copy(packed.subspan(sizeof fixed), std::as_writable_bytes(std::span(address.addresses)).begin());
  return address;
}

SystemAddress system_address(const IpAddress& address, uint16_t port) noexcept {
  SystemAddress result;
  if (is_mapped(address)) {
    sockaddr_in ipv4{};
    ipv4.sin_family = AF_INET;
    ipv4.sin_port = htons(port);
    std::memcpy(&ipv4.sin_addr, address.data() + kPrefixBytes, sizeof ipv4.sin_addr);
    std::memcpy(&result.storage, &ipv4, sizeof ipv4);
    result.num_bytes = sizeof ipv4;
    return result;
  }
  sockaddr_in6 ipv6{};
  ipv6.sin6_family = AF_INET6;
  ipv6.sin6_port = htons(port);
  std::memcpy(&ipv6.sin6_addr, address.data(), sizeof ipv6.sin6_addr);
  std::memcpy(&result.storage, &ipv6, sizeof ipv6);
  result.num_bytes = sizeof ipv6;
  return result;
}

IpAddress ip_address(const sockaddr& address) noexcept {
  IpAddress result{};
  if (address.sa_family == AF_INET) {
    result = kAnyIpv4;
    std::memcpy(result.data() + kPrefixBytes, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, 4);
  } else if (address.sa_family == AF_INET6) {
    std::memcpy(result.data(), &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, result.size());
  }
  return result;
}

std::string text_of(const IpAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const bool mapped = is_mapped(address);
  inet_ntop(mapped ? AF_INET : AF_INET6, address.data() + (mapped ? kPrefixBytes : 0), text.data(), text.size());
  return mapped ? text.data() : "[" + std::string(text.data()) + "]";
}

std::string text_of(const IpAddress& address, uint16_t port) {
  return text_of(address) + ":" + std::to_string(port);
}

static bool is_global(const ifaddrs& device) noexcept {
  if ((device.ifa_flags & IFF_LOOPBACK) != 0) return false;
  if (device.ifa_addr->sa_family != AF_INET6) return true;
  return !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(device.ifa_addr)->sin6_addr);
}

using Interfaces = std::unique_ptr<ifaddrs, void (*)(ifaddrs*)>;

// Returns the addresses of this host's devices, as a list; null if they cannot be read.
static Interfaces read_interfaces() noexcept {
  ifaddrs* first = nullptr;
  return Interfaces(getifaddrs(&first) == 0 ? first : nullptr, &freeifaddrs);
}

std::vector<IpAddress> addresses_of_devices(std::span<const std::string> devices) {
  std::vector<IpAddress> found;
  const Interfaces interfaces = read_interfaces();
  const auto add_of = [&](const std::string* device) {
    for (const ifaddrs* each = interfaces.get(); each != nullptr; each = each->ifa_next) {
      const bool is_up = (each->ifa_flags & IFF_UP) != 0 && each->ifa_addr != nullptr;
      if (!is_up || (each->ifa_addr->sa_family != AF_INET && each->ifa_addr->sa_family != AF_INET6)) continue;
      if (device != nullptr ? *device != each->ifa_name : !is_global(*each)) continue;
      if (found.size() == RailAddress::kMostAddresses) return;
      found.push_back(ip_address(*each->ifa_addr));
      if (device != nullptr) return;  // one address for each named device
    }
  };
  for (const std::string& device : devices) add_of(&device);
  if (devices.empty()) add_of(nullptr);
  return found;
}

static bool has_prefix(const IpAddress& address, const IpAddress& own, const IpAddress& mask) noexcept {
  for (size_t i = 0; i < address.size(); ++i) {
    if (((address[i] ^ own[i]) & mask[i]) != std::byte{0}) return false;
  }
  return true;
}

void OwnSubnets::read() {
  if (are_read_) return;
  const Interfaces interfaces = read_interfaces();
  are_read_ = interfaces != nullptr;
  for (const ifaddrs* each = interfaces.get(); each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_netmask == nullptr) continue;
    const IpAddress own = ip_address(*each->ifa_addr);
    if (own == IpAddress{}) continue;  // neither IPv4 nor IPv6
    IpAddress mask = ip_address(*each->ifa_netmask);
    if (is_mapped(own)) std::fill_n(mask.begin(), kPrefixBytes, std::byte{0xFF});
    subnets_.push_back({.own = own, .mask = mask});
  }
}

int OwnSubnets::distance_of(const IpAddress& address) const noexcept {
  if (std::ranges::find(subnets_, address, &Subnet::own) != subnets_.end()) return 2;
  const auto has = [&](const Subnet& subnet) { return has_prefix(address, subnet.own, subnet.mask); };
  return std::ranges::any_of(subnets_, has) ? 0 : 1;
}

void OwnSubnets::order_by_nearness(std::vector<IpAddress>& addresses) {
  if (addresses.size() < 2) return;
  read();
  std::ranges::stable_sort(addresses, {}, [this](const IpAddress& address) { return distance_of(address); });
}

std::string device_with(const IpAddress& address) {
  const Interfaces interfaces = read_interfaces();
  for (const ifaddrs* each = interfaces.get(); each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr != nullptr && ip_address(*each->ifa_addr) == address) return each->ifa_name;
  }
  return "";
}

// Connecting a datagram socket sends nothing: it only looks up the route.
std::string device_towards(const IpAddress& address) {
  const SystemAddress to = system_address(address, /*port=*/9);
  const FileDescriptor socket(::socket(to.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  SystemAddress own;
  own.num_bytes = sizeof own.storage;
  if (!socket.valid() || ::connect(socket.get(), to.get(), to.num_bytes) != 0 ||
      getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own.storage), &own.num_bytes) != 0) {
    return "";
  }
  return device_with(ip_address(*own.get()));
}

}  // namespace axon::transport
