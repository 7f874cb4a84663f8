// Fuzzes peer addresses from the store: an accepted one contains exactly the fields of its bytes.
#include "engine/peer_address.hpp"

#include <algorithm>

#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using namespace axon::engine;
  const std::span<const uint8_t> blob(data, num_bytes);
  axon::Result<PeerAddress> peer_address = PeerAddress::decode(blob);
  CHECK(peer_address.ok() ? std::ranges::equal(peer_address.value().encode(), blob)
                          : !peer_address.status().message().empty());
  return 0;
}
