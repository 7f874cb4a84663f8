// Cards of GPUs, as letters bring them: one that is taken says exactly what its bytes say, and its slice is in its
// arena.
#include "ipc/device_address.hpp"

#include <algorithm>

#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using namespace axon;
  const auto bytes = std::as_bytes(std::span(data, num_bytes));
  Result<DeviceCard> decoded = DeviceCard::decode(bytes);
  if (!decoded.ok()) return 0;
  const DeviceCard& card = decoded.value();
  CHECK(std::ranges::equal(card.encode(), bytes));
  CHECK(card.slice.num_bytes <= card.arena_num_bytes);
  CHECK(card.slice.offset <= card.arena_num_bytes - card.slice.num_bytes);
  return 0;
}
