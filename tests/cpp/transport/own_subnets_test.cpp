// The order in which a peer's addresses are tried, on a host with given devices.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <array>
#include <string>
#include <vector>

#include "transport/rails/rail_address.hpp"

namespace {

sockaddr_in ipv4(const char* text) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, text, &address.sin_addr);
  return address;
}

struct Device {
  sockaddr_in address;
  sockaddr_in mask;
  ifaddrs entry{};
};

// A network card, and a bridge that other hosts have with the same address.
std::array<Device, 2> devices{{{.address = ipv4("10.0.0.5"), .mask = ipv4("255.255.255.0")},
                               {.address = ipv4("172.17.0.1"), .mask = ipv4("255.255.0.0")}}};
int num_reads = 0;

}  // namespace

// These take the place of libc's functions in this program.
extern "C" int getifaddrs(ifaddrs** first) noexcept {
  ++num_reads;
  for (size_t i = 0; i < devices.size(); ++i) {
    Device& device = devices[i];
    device.entry.ifa_addr = reinterpret_cast<sockaddr*>(&device.address);
    device.entry.ifa_netmask = reinterpret_cast<sockaddr*>(&device.mask);
    device.entry.ifa_next = i + 1 < devices.size() ? &devices[i + 1].entry : nullptr;
  }
  *first = &devices[0].entry;
  return 0;
}
extern "C" void freeifaddrs(ifaddrs*) noexcept {}

namespace axon::transport {
namespace {

IpAddress parsed(const char* text) {
  const sockaddr_in address = ipv4(text);
  return ip_address(reinterpret_cast<const sockaddr&>(address));
}

TEST(OwnSubnets, put_near_addresses_first_and_own_ones_last) {
  OwnSubnets subnets;
  std::vector<IpAddress> addresses{parsed("172.17.0.1"), parsed("192.168.1.1"), parsed("172.17.3.4"),
                                   parsed("10.0.0.7")};
  subnets.order_by_nearness(addresses);
  const std::vector<IpAddress> expected{parsed("172.17.3.4"), parsed("10.0.0.7"), parsed("192.168.1.1"),
                                        parsed("172.17.0.1")};
  EXPECT_EQ(addresses, expected);
}

TEST(OwnSubnets, are_read_once_and_only_if_needed) {
  OwnSubnets subnets;
  num_reads = 0;
  std::vector<IpAddress> single{parsed("10.0.0.7")};
  subnets.order_by_nearness(single);
  EXPECT_EQ(num_reads, 0);
  for (int peer = 0; peer < 100; ++peer) {
    std::vector<IpAddress> addresses{parsed("172.17.0.1"), parsed("10.0.0.7")};
    subnets.order_by_nearness(addresses);
    EXPECT_EQ(addresses.front(), parsed("10.0.0.7"));
  }
  EXPECT_EQ(num_reads, 1);
}

}  // namespace
}  // namespace axon::transport
