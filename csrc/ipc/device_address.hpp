// The address of a rank's GPU side of a group: where its slice is, and how peers map it. A plain value, sent to all
// ranks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.hpp"
#include "ipc/slice_allocator.hpp"

namespace axon::ipc {

struct DeviceAddress {
  static constexpr size_t kNumBytes = 88;

  uint64_t incarnation = 0;               // of the arena: random, constant for the life of its process
  uint64_t host = 0;                      // as in PeerAddress
  int32_t pid = 0;                        // in that host's pid namespace
  int32_t descriptor = -1;                // of the arena, in that process
  std::array<uint8_t, 16> device_uuid{};  // of its GPU
  uint64_t arena_num_bytes = 0;
  uint64_t edition = 0;       // of the arena's memory, which may have been given back and allocated again
  uint64_t export_table = 0;  // address of that process's export table, in its memory
  ArenaSlice slice;           // of this group in the arena; zero bytes if this rank has no slice

  std::array<std::byte, kNumBytes> encode() const;
  // Rejects addresses that are truncated, foreign or of another version, and slices outside their arena. The error says
  // which.
  static Result<DeviceAddress> decode(std::span<const std::byte> bytes);
};

}  // namespace axon::ipc
