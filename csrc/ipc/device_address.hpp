// What a rank tells the others about its GPU side of a group: where its slice is, and how to map it.
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

  uint64_t incarnation = 0;               // random, of the arena: for the life of its process
  uint64_t host = 0;                      // as in PeerAddress
  int32_t pid = 0;                        // in that host's namespace
  int32_t descriptor = -1;                // the arena's, in that process
  std::array<uint8_t, 16> device_uuid{};  // of its GPU
  uint64_t arena_num_bytes = 0;
  uint64_t edition = 0;       // of the arena's memory, which may have been given back and made anew
  uint64_t export_table = 0;  // where that process's export table is, in its memory
  ArenaSlice slice;           // of this group in the arena; no bytes: this rank has none to offer

  std::array<std::byte, kNumBytes> encode() const;
  // Refuses truncated, foreign and other-version addresses and slices that lie outside their arena, saying which.
  static Result<DeviceAddress> decode(std::span<const std::byte> bytes);
};

}  // namespace axon::ipc
