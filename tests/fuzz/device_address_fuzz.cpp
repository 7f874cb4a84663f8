// Fuzzes device addresses as control messages carry them: an accepted one contains exactly the fields of its bytes, and
// its slice lies in its arena.
#include "ipc/device_address.hpp"

#include <algorithm>

#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using namespace axon::ipc;
  const auto bytes = std::as_bytes(std::span(data, num_bytes));
  axon::Result<DeviceAddress> decoded = DeviceAddress::decode(bytes);
  if (!decoded.ok()) return 0;
  const DeviceAddress& address = decoded.value();
  CHECK(std::ranges::equal(address.encode(), bytes));
  CHECK(address.slice.num_bytes <= address.arena_num_bytes);
  CHECK(address.slice.offset <= address.arena_num_bytes - address.slice.num_bytes);
  return 0;
}
