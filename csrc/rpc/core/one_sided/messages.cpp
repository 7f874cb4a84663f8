#include "rpc/core/one_sided/messages.hpp"

namespace axon::rpc {

template <typename T>
static void append_values(std::vector<std::byte>& bytes, const T* values, size_t num_values) {
  const auto* const begin = reinterpret_cast<const std::byte*>(values);
  bytes.insert(bytes.end(), begin, begin + num_values * sizeof(T));
}

// Takes a value from the begin of the bytes. Returns false if they are too few.
template <typename T>
static bool take_value(std::span<const std::byte>& bytes, T& value) {
  if (bytes.size() < sizeof value) return false;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes = bytes.subspan(sizeof value);
  return true;
}

std::vector<std::byte> encode_grant(const GrantInfo& info) {
  std::vector<std::byte> bytes;
  append_values(bytes, &info.prefix, 1);
  if (info.prefix.memory == GrantedMemory::kDevice) append_values(bytes, &info.device, 1);
  if (info.prefix.memory == GrantedMemory::kMappable) append_values(bytes, &info.mappable, 1);
  append_values(bytes, info.extents.data(), info.extents.size());
  append_values(bytes, info.name.data(), info.name.size());
  return bytes;
}

std::optional<GrantInfo> decode_grant(std::span<const std::byte> payload) {
  GrantInfo info;
  if (!take_value(payload, info.prefix)) return std::nullopt;
  const GrantPrefix& prefix = info.prefix;
  if (prefix.num_extents > kMostExtents || prefix.name_num_bytes > kLongestRegionName) return std::nullopt;
  if (prefix.memory > GrantedMemory::kMappable) return std::nullopt;
  if (prefix.memory == GrantedMemory::kDevice && !take_value(payload, info.device)) return std::nullopt;
  if (prefix.memory == GrantedMemory::kMappable && !take_value(payload, info.mappable)) return std::nullopt;
  const size_t num_extent_bytes = prefix.num_extents * sizeof(Extent);
  if (payload.size() != num_extent_bytes + prefix.name_num_bytes) return std::nullopt;
  if (prefix.access == 0 || prefix.access > static_cast<uint32_t>(Access::kReadWrite)) return std::nullopt;
  info.extents.resize(prefix.num_extents);
  const auto extents = payload.first(num_extent_bytes);
  if (!extents.empty()) std::memcpy(info.extents.data(), extents.data(), extents.size());
  uint64_t num_bytes = 0;
  for (const Extent& extent : info.extents) {
    if (__builtin_add_overflow(num_bytes, extent.num_bytes, &num_bytes)) return std::nullopt;
  }
  if (num_bytes != prefix.num_bytes) return std::nullopt;
  const auto name = payload.subspan(num_extent_bytes);
  info.name.assign(reinterpret_cast<const char*>(name.data()), name.size());
  return info;
}

void append_table(std::vector<std::byte>& frame, std::span<const ListEntry> entries) {
  const uint64_t num_entries = entries.size();
  append_values(frame, &num_entries, 1);
  append_values(frame, entries.data(), entries.size());
}

std::optional<Table> read_table(std::span<const std::byte> payload) {
  uint64_t num_entries = 0;
  if (payload.size() < sizeof num_entries) return std::nullopt;
  std::memcpy(&num_entries, payload.data(), sizeof num_entries);
  payload = payload.subspan(sizeof num_entries);
  if (num_entries > payload.size() / sizeof(ListEntry)) return std::nullopt;
  Table table;
  table.entries.resize(num_entries);
  const auto entries = payload.first(num_entries * sizeof(ListEntry));
  if (!entries.empty()) std::memcpy(table.entries.data(), entries.data(), entries.size());
  for (const ListEntry& entry : table.entries) {
    if (entry.num_bytes == 0) return std::nullopt;
    table.num_bytes += entry.num_bytes;  // no overflow: a payload has less than 2^32 entries
  }
  table.rest = payload.subspan(entries.size());
  return table;
}

}  // namespace axon::rpc
