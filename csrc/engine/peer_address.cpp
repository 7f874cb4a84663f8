#include "engine/peer_address.hpp"

#include <cstring>
#include <string>

#include "transport/message.hpp"

namespace axon::engine {

namespace {

// The blob: this prefix, then the transport address. Fixed layout, little-endian as all supported hosts; docs/wire.md.
struct Prefix {
  std::array<char, 4> magic{'a', 'x', 'o', 'n'};
  uint32_t wire_version = transport::kWireVersion;
  uint64_t key = 0;
  std::array<uint64_t, 2> process{};
  uint64_t host = 0;
  int32_t pid = 0;
  uint32_t address_num_bytes = 0;
};
static_assert(sizeof(Prefix) == 48);

}  // namespace

std::vector<uint8_t> PeerAddress::encode() const {
  Prefix prefix;
  prefix.key = key;
  prefix.process = process;
  prefix.host = host;
  prefix.pid = pid;
  prefix.address_num_bytes = static_cast<uint32_t>(transport_address.size());
  std::vector<uint8_t> blob(sizeof prefix + transport_address.size());
  std::memcpy(blob.data(), &prefix, sizeof prefix);
  if (!transport_address.empty())
    std::memcpy(blob.data() + sizeof prefix, transport_address.data(), transport_address.size());
  return blob;
}

// The finalizer of splitmix64: numbers that users count up spread over all bits.
static uint64_t scatter(uint64_t number) noexcept {
  number = (number ^ number >> 30) * 0xbf58'476d'1ce4'e5b9;
  number = (number ^ number >> 27) * 0x94d0'49bb'1331'11eb;
  return number ^ number >> 31;
}

PeerAddress PeerAddress::in_instance(uint64_t number) const {
  PeerAddress other = *this;
  other.key = uint64_t{series()} << 32 | scatter(key + number) >> 32;
  return other;
}

Result<PeerAddress> PeerAddress::decode(std::span<const uint8_t> blob) {
  const auto refuse = [&](const std::string& why) {
    return Status(ErrorCode::kInvalidArgument, "peer address of " + std::to_string(blob.size()) + " bytes: " + why);
  };
  Prefix prefix;
  if (blob.size() < sizeof prefix) return refuse("truncated, at least " + std::to_string(sizeof prefix) + " expected");
  std::memcpy(&prefix, blob.data(), sizeof prefix);
  if (prefix.magic != Prefix{}.magic) return refuse("not from torch_axon");
  if (prefix.wire_version != transport::kWireVersion) {
    return refuse("the peer speaks wire version " + std::to_string(prefix.wire_version) + ", this process " +
                  std::to_string(transport::kWireVersion) + ": install the same torch_axon on all ranks");
  }
  const auto transport_address = std::as_bytes(blob.subspan(sizeof prefix));
  if (transport_address.size() != prefix.address_num_bytes) {
    return refuse("contains " + std::to_string(transport_address.size()) + " bytes of transport address, expected " +
                  std::to_string(prefix.address_num_bytes));
  }
  PeerAddress peer_address;
  peer_address.key = prefix.key;
  peer_address.process = prefix.process;
  peer_address.host = prefix.host;
  peer_address.pid = prefix.pid;
  peer_address.transport_address.assign(transport_address.begin(), transport_address.end());
  return peer_address;
}

}  // namespace axon::engine
