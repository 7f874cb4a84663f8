#include "rpc/core/handshake/listener_address.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace axon::rpc {

namespace {

// Layout: this prefix, the host, the secret. docs/wire.md.
struct AddressPrefix {
  std::array<char, 4> magic{'a', 'x', 'i', 'n'};
  uint16_t version = 1;
  uint16_t port = 0;
  uint16_t host_num_bytes = 0;
  uint16_t secret_num_bytes = 0;
};
static_assert(sizeof(AddressPrefix) == 12);

Status refuse_address(const std::string& why) {
  return {ErrorCode::kInvalidArgument, "address of a runtime: " + why};
}

}  // namespace

Secret address_key_of(const Secret& secret, const std::string& place) {
  return secret.derive("torch_axon address of " + place);
}

std::vector<std::byte> ListenerAddress::encode() const {
  const auto text = std::as_bytes(std::span(host));
  const AddressPrefix prefix{.port = port,
                             .host_num_bytes = static_cast<uint16_t>(text.size()),
                             .secret_num_bytes = static_cast<uint16_t>(secret.bytes().size())};
  std::vector<std::byte> bytes(sizeof prefix + text.size() + secret.bytes().size());
  std::memcpy(bytes.data(), &prefix, sizeof prefix);
  std::ranges::copy(text, bytes.begin() + sizeof prefix);
  std::ranges::copy(secret.bytes(), bytes.end() - static_cast<std::ptrdiff_t>(secret.bytes().size()));
  return bytes;
}

Result<ListenerAddress> ListenerAddress::decode(std::span<const std::byte> bytes) {
  AddressPrefix prefix;
  if (bytes.size() < sizeof prefix) return refuse_address(std::to_string(bytes.size()) + " bytes are too few");
  std::memcpy(&prefix, bytes.data(), sizeof prefix);
  if (prefix.magic != AddressPrefix{}.magic) return refuse_address("these bytes are not an address");
  if (prefix.version != AddressPrefix{}.version) return refuse_address("it was made by another version of torch_axon");
  bytes = bytes.subspan(sizeof prefix);
  if (bytes.size() != size_t{prefix.host_num_bytes} + prefix.secret_num_bytes)
    return refuse_address("truncated or too long");
  const std::string host(reinterpret_cast<const char*>(bytes.data()), prefix.host_num_bytes);
  const auto is_graphic = [](char character) { return character > ' ' && character <= '~'; };
  if (host.empty() || host.size() > kMostHostBytes || !std::ranges::all_of(host, is_graphic)) {
    return refuse_address("its host is empty or invalid");
  }
  if (prefix.port == 0) return refuse_address("port 0");
  Result<Secret> secret = Secret::from(bytes.subspan(prefix.host_num_bytes));
  if (!secret.ok()) return refuse_address(secret.status().message());
  return ListenerAddress{.host = host, .port = prefix.port, .secret = std::move(secret).value()};
}

}  // namespace axon::rpc
