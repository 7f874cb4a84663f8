#include "transport/ucx/loopback_devices.hpp"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>

#include "transport/ucx/ucx_library.hpp"

namespace axon::transport {

// UCX keeps a flag in the id's highest bit, which says that a namespace's number follows.
static constexpr uint64_t kIdBits = UINT64_MAX >> 1;

void hide_loopback(std::span<std::byte> address) noexcept {
  const uint64_t own = ucx->ucs_get_system_id() & kIdBits;
  for (size_t offset = 0; offset + sizeof own <= address.size(); ++offset) {
    uint64_t id = 0;
    std::memcpy(&id, address.data() + offset, sizeof id);
    if ((id & kIdBits) != own) continue;
    id ^= kIdBits;
    std::memcpy(address.data() + offset, &id, sizeof id);
    offset += sizeof id - 1;
  }
}

// Returns the bytes of an interface's address as UCX packs them; empty for other address families.
static std::span<const std::byte> bytes_of(const sockaddr* address) noexcept {
  if (address == nullptr) return {};
  if (address->sa_family == AF_INET) {
    return std::as_bytes(std::span(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr, 1));
  }
  if (address->sa_family == AF_INET6) {
    return std::as_bytes(std::span(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, 1));
  }
  return {};
}

bool names_another_interface(std::span<const std::byte> address) noexcept {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return false;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> interfaces(first, &freeifaddrs);
  for (const ifaddrs* each = interfaces.get(); each != nullptr; each = each->ifa_next) {
    const auto bytes = bytes_of(each->ifa_addr);
    if (bytes.empty() || (each->ifa_flags & IFF_LOOPBACK) != 0) continue;
    if (!std::ranges::search(address, bytes).empty()) return true;
  }
  return false;
}

}  // namespace axon::transport
