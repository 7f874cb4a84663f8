// Fuzzes what peers send in one-sided transfers: grants, tables of blocks, and handles. What is accepted is consistent,
// lies within the message, and no bytes are a handle that only the owner of a key can make.
#include <algorithm>

#include "fuzz.hpp"
#include "rpc/core/one_sided/messages.hpp"
#include "rpc/core/one_sided/region_handle.hpp"

namespace axon::rpc {
namespace {

void check_grant(std::span<const std::byte> payload) {
  const std::optional<GrantInfo> info = decode_grant(payload);
  if (!info) return;
  CHECK(info->extents.size() <= kMostExtents && info->name.size() <= kLongestRegionName);
  uint64_t num_bytes = 0;
  for (const Extent& extent : info->extents) CHECK(!__builtin_add_overflow(num_bytes, extent.num_bytes, &num_bytes));
  CHECK(num_bytes == info->prefix.num_bytes);
  const auto access = static_cast<Access>(info->prefix.access);
  CHECK(access != Access::kNone && allows(Access::kReadWrite, access));
  const std::vector<std::byte> again = encode_grant(*info);
  CHECK(std::ranges::equal(again, payload));
}

void check_table(std::span<const std::byte> payload) {
  const std::optional<Table> table = read_table(payload);
  if (!table) return;
  const size_t num_read = sizeof(uint64_t) + table->entries.size() * sizeof(ListEntry);
  CHECK(num_read + table->rest.size() == payload.size());
  CHECK(table->rest.empty() || table->rest.data() == payload.data() + num_read);
  uint64_t num_bytes = 0;
  for (const ListEntry& entry : table->entries) {
    CHECK(entry.num_bytes != 0);
    num_bytes += entry.num_bytes;
  }
  CHECK(num_bytes == table->num_bytes);
}

void check_handle(std::span<const std::byte> bytes) {
  const Result<RegionHandle> handle = RegionHandle::decode(bytes);
  CHECK(handle.ok() || !handle.status().message().empty());
  if (!handle.ok()) return;
  CHECK(bytes.size() == sizeof(EncodedHandle));
  const Nonce key{std::byte{0x5E}, std::byte{0xC2}, std::byte{0xE7}};
  CHECK(!handle.value().is_sealed_by(key, bytes));
  const EncodedHandle sealed = handle.value().encode(key);
  CHECK(std::ranges::equal(std::span(sealed).first(sizeof(RegionHandle)), bytes.first(sizeof(RegionHandle))));
  CHECK(handle.value().is_sealed_by(key, sealed));
}

}  // namespace
}  // namespace axon::rpc

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  axon::Input input(data, num_bytes);
  const uint8_t kind = input.take<uint8_t>() % 3;
  const auto payload = std::as_bytes(input.rest());
  if (kind == 0) axon::rpc::check_grant(payload);
  if (kind == 1) axon::rpc::check_table(payload);
  if (kind == 2) axon::rpc::check_handle(payload);
  return 0;
}
