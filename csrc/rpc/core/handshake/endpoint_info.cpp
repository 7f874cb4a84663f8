#include "rpc/core/handshake/endpoint_info.hpp"

#include <algorithm>
#include <cstring>

namespace axon::rpc {

namespace {

// Layout: this prefix, the name, the address. docs/wire.md.
struct Prefix {
  uint64_t incarnation = 0;
  uint64_t key = 0;
  uint32_t name_num_bytes = 0;
  uint32_t address_num_bytes = 0;
};
static_assert(sizeof(Prefix) == 24);

Status refuse(const std::string& why) {
  return {ErrorCode::kInvalidArgument, "invalid endpoint info: " + why};
}

Status check(const std::string& name, size_t address_num_bytes) {
  if (name.empty() || name.size() > EndpointInfo::kMostNameBytes) {
    return refuse("the name has " + std::to_string(name.size()) + " bytes; allowed: 1 to " +
                  std::to_string(EndpointInfo::kMostNameBytes));
  }
  const auto is_control = [](unsigned char character) { return character < ' ' || character == 127; };
  if (std::ranges::any_of(name, is_control)) return refuse("the name has control characters");
  if (address_num_bytes == 0 || address_num_bytes > EndpointInfo::kMostAddressBytes) {
    return refuse("the address has " + std::to_string(address_num_bytes) + " bytes; allowed: 1 to " +
                  std::to_string(EndpointInfo::kMostAddressBytes));
  }
  return {};
}

}  // namespace

Result<std::vector<std::byte>> EndpointInfo::encode() const {
  if (Status checked = check(name, address.size()); !checked.ok()) return checked;
  const Prefix prefix{.incarnation = incarnation,
                      .key = key,
                      .name_num_bytes = static_cast<uint32_t>(name.size()),
                      .address_num_bytes = static_cast<uint32_t>(address.size())};
  std::vector<std::byte> bytes(sizeof prefix + name.size() + address.size());
  std::memcpy(bytes.data(), &prefix, sizeof prefix);
  std::memcpy(bytes.data() + sizeof prefix, name.data(), name.size());
  std::memcpy(bytes.data() + sizeof prefix + name.size(), address.data(), address.size());
  return bytes;
}

Result<EndpointInfo> EndpointInfo::decode(std::span<const std::byte> bytes) {
  Prefix prefix;
  if (bytes.size() < sizeof prefix) return refuse("truncated");
  std::memcpy(&prefix, bytes.data(), sizeof prefix);
  bytes = bytes.subspan(sizeof prefix);
  if (bytes.size() != uint64_t{prefix.name_num_bytes} + prefix.address_num_bytes) {
    return refuse("expected " + std::to_string(uint64_t{prefix.name_num_bytes} + prefix.address_num_bytes) +
                  " bytes of name and address, got " + std::to_string(bytes.size()));
  }
  const auto* characters = reinterpret_cast<const char*>(bytes.data());
  const auto address = bytes.subspan(prefix.name_num_bytes);
  EndpointInfo info{.name = {characters, prefix.name_num_bytes},
                    .incarnation = prefix.incarnation,
                    .key = prefix.key,
                    .address = {address.begin(), address.end()}};
  if (Status checked = check(info.name, address.size()); !checked.ok()) return checked;
  return info;
}

}  // namespace axon::rpc
