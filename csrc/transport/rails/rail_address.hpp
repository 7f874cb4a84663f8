// The address at which a transport accepts rails. It is part of the transport's address, which is a secret of the
// processes that were given it.
//
//   std::vector<std::byte> packed = own.encode();
//   Result<RailAddress> peer = RailAddress::decode(packed);
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "transport/rails/rail_handshake.hpp"

namespace axon::transport {

// An IPv6 address, or an IPv4 address mapped into one (::ffff:10.0.0.1).
using IpAddress = std::array<std::byte, 16>;

inline constexpr IpAddress kAnyIpv6{};
inline constexpr IpAddress kAnyIpv4{std::byte{0}, std::byte{0}, std::byte{0},    std::byte{0},
                                    std::byte{0}, std::byte{0}, std::byte{0},    std::byte{0},
                                    std::byte{0}, std::byte{0}, std::byte{0xFF}, std::byte{0xFF}};

struct RailAddress {
  static constexpr size_t kMostAddresses = 16;

  uint64_t name = 0;  // of the transport
  RailToken token{};
  uint16_t port = 0;            // 0: it accepts no rails
  bool takes_turns = false;     // rails are spread over the addresses; otherwise they all use the first that works
  uint16_t most_processes = 0;  // of its host that can share its cores so that its rails pay
  std::vector<IpAddress> addresses;

  // Returns an address without a port, of a new token: at the named devices, which take turns, or at all of this host.
  // Fails if no device is up.
  static Result<RailAddress> of_devices(std::span<const std::string> devices, uint64_t name);

  std::vector<std::byte> encode() const;
  static Result<RailAddress> decode(std::span<const std::byte> packed);
};

// A socket address in the system's form.
struct SystemAddress {
  sockaddr_storage storage{};
  socklen_t num_bytes = 0;

  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
};

SystemAddress system_address(const IpAddress& address, uint16_t port) noexcept;
// Returns the form in which rails compare and send addresses; all zeros for other families.
IpAddress ip_address(const sockaddr& address) noexcept;
// Returns "10.0.0.2" or "[fd00::2]", followed by ":41234" if there is a port.
std::string text_of(const IpAddress& address);
std::string text_of(const IpAddress& address, uint16_t port);

// Returns the addresses of this host's devices that are up, without loopback and link-local ones. If devices are named,
// returns the addresses of these in their order; loopback may be one of them.
std::vector<IpAddress> addresses_of_devices(std::span<const std::string> devices);

// The subnets of this host, as they are when they are used first. Reading them takes a lock of the whole system, for
// which a hundred processes that start at once would wait if they did it for each peer.
class OwnSubnets {
 public:
  // Puts addresses last that this host has itself, such as that of a bridge which every host has: there, a connection
  // would reach this host. Puts those first that are in a subnet of this host.
  void order_by_nearness(std::vector<IpAddress>& addresses);

 private:
  struct Subnet {
    IpAddress own{};
    IpAddress mask{};
  };

  void read();
  int distance_of(const IpAddress& address) const noexcept;

  bool are_read_ = false;
  std::vector<Subnet> subnets_;
};

// Returns the name of this host's device that has the address; empty if none has it.
std::string device_with(const IpAddress& address);
// Returns the name of the device from which this host reaches the address; empty if it has no route there.
std::string device_towards(const IpAddress& address);

}  // namespace axon::transport
