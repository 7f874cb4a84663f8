// Payloads of the messages of one-sided transfers (docs/wire.md). Nothing in them is trusted before it is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rpc/core/one_sided/region.hpp"

namespace axon::rpc {

// A block in the table of a scatter or gather.
struct ListEntry {
  uint32_t grant = 0;
  uint32_t num_bytes = 0;
  uint64_t offset = 0;  // in the granted bytes
};
static_assert(sizeof(ListEntry) == 16);

// The kinds of granted memory, and what tells where it is.
enum class GrantedMemory : uint32_t {
  kHost,      // none
  kDevice,    // a DeviceLocation
  kMappable,  // a MappableMemory::Location
};

// The begin of the payload of a grant. The location of the memory, extents and the region's name follow.
struct GrantPrefix {
  uint64_t num_bytes = 0;
  uint64_t flag_value = 0;
  uint64_t flag_address = 0;
  uint32_t access = 0;
  uint32_t num_extents = 0;
  uint32_t name_num_bytes = 0;
  GrantedMemory memory = GrantedMemory::kHost;
};
static_assert(sizeof(GrantPrefix) == 40);

struct GrantInfo {
  GrantPrefix prefix;
  DeviceLocation device{};              // valid for kDevice
  MappableMemory::Location mappable{};  // valid for kMappable
  std::vector<Extent> extents;
  std::string name;
};

inline constexpr size_t kLongestRegionName = 255;
// Larger blocks are messages of their own.
inline constexpr size_t kLargestListed = size_t{32} << 10;
// Bytes of a table and its blocks.
inline constexpr size_t kMostListNumBytes = size_t{64} << 10;

std::vector<std::byte> encode_grant(const GrantInfo& info);
// Returns nothing if the payload is invalid. The extents of a valid one add up to its bytes.
std::optional<GrantInfo> decode_grant(std::span<const std::byte> payload);

// A table: its number of entries u64, and the entries.
void append_table(std::vector<std::byte>& frame, std::span<const ListEntry> entries);
struct Table {
  std::vector<ListEntry> entries;
  std::span<const std::byte> rest;  // what follows the table
  uint64_t num_bytes = 0;           // of all blocks
};
// Returns nothing if the payload is invalid: it is too short, or an entry has no bytes.
std::optional<Table> read_table(std::span<const std::byte> payload);

}  // namespace axon::rpc
