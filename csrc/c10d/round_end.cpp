#include "c10d/round_end.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "c10d/errors.hpp"

namespace axon::c10d_backend {

engine::PeerAddress decode_address(int rank, const Blob& blob) {
  Result<engine::PeerAddress> peer_address = engine::PeerAddress::decode(blob);
  if (peer_address.ok()) return std::move(peer_address).value();
  throw_failure(Status(ErrorCode::kTransport, "the address of rank " + std::to_string(rank) +
                                                  " cannot be read: " + peer_address.status().message()));
}

// Numbers of eight bytes in this machine's byte order, as in the addresses.
static void append(Blob& blob, uint64_t number) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&number);
  blob.insert(blob.end(), bytes, bytes + sizeof number);
}

static uint64_t take_number(std::span<const uint8_t>& blob) {
  uint64_t number = 0;
  if (blob.size() < sizeof number) throw_failure(Status(ErrorCode::kTransport, "a truncated entry in the store"));
  std::memcpy(&number, blob.data(), sizeof number);
  blob = blob.subspan(sizeof number);
  return number;
}

static void append_addresses(Blob& blob, const std::vector<engine::PeerAddress>& addresses) {
  for (const engine::PeerAddress& peer_address : addresses) {
    const Blob encoded = peer_address.encode();
    append(blob, encoded.size());
    blob.insert(blob.end(), encoded.begin(), encoded.end());
  }
}

static std::vector<engine::PeerAddress> take_addresses(std::span<const uint8_t> rest) {
  std::vector<engine::PeerAddress> addresses;
  while (!rest.empty()) {
    const size_t num_bytes = std::min<size_t>(take_number(rest), rest.size());
    const Blob encoded(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(num_bytes));
    addresses.push_back(decode_address(static_cast<int>(addresses.size()), encoded));
    rest = rest.subspan(num_bytes);
  }
  return addresses;
}

Blob RoundEnd::encode() const {
  Blob blob{static_cast<uint8_t>(kind)};
  append(blob, static_cast<uint64_t>(latest_group));
  if (kind == Kind::kMove) append(blob, static_cast<uint64_t>(next_round));
  append_addresses(blob, addresses);
  blob.insert(blob.end(), root_address.begin(), root_address.end());
  blob.insert(blob.end(), reason.begin(), reason.end());
  return blob;
}

RoundEnd RoundEnd::decode(const Blob& blob) {
  std::span<const uint8_t> rest(blob);
  if (rest.empty()) throw_failure(Status(ErrorCode::kTransport, "an empty entry in the store"));
  RoundEnd end{.kind = static_cast<Kind>(rest.front())};
  rest = rest.subspan(1);
  end.latest_group = static_cast<int64_t>(take_number(rest));
  switch (end.kind) {
    case Kind::kGroup:
      end.addresses = take_addresses(rest);
      break;
    case Kind::kMove:
      end.next_round = static_cast<int64_t>(take_number(rest));
      break;
    case Kind::kExchange:
      end.root_address.assign(rest.begin(), rest.end());
      break;
    case Kind::kFormed:
      break;
    case Kind::kFailed:
      end.reason.assign(rest.begin(), rest.end());
      break;
    default:
      throw_failure(Status(ErrorCode::kTransport, "an entry of an unknown kind in the store"));
  }
  return end;
}

}  // namespace axon::c10d_backend
