// Cards from the store: one that is taken says exactly what its bytes say.
#include "engine/peer_address.hpp"

#include <algorithm>

#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using namespace axon;
  const std::span<const uint8_t> blob(data, num_bytes);
  Result<PeerCard> card = PeerCard::decode(blob);
  CHECK(card.ok() ? std::ranges::equal(card.value().encode(), blob) : !card.status().message().empty());
  return 0;
}
