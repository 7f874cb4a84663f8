// What a process tells its peers about a segment, and the bytes of a list of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "cuda/allocation.hpp"
#include "cuda/device_types.hpp"

namespace axon {

struct SegmentPiece {
  int32_t descriptor = -1;  // in the owner's process
  uint64_t num_bytes = 0;   // as mapped there

  bool operator==(const SegmentPiece&) const = default;
};

struct SegmentRecord {
  uint32_t number = 0;
  uint64_t num_bytes = 0;
  std::vector<SegmentPiece> pieces;  // in the order of their addresses; none: `legacy` is what opens it
  LegacyHandle legacy{};

  bool operator==(const SegmentRecord&) const = default;
};

// How much a process offers at most.
inline constexpr size_t kMostSegments = kSegmentSlots;
inline constexpr size_t kMostPieces = 8192;  // of all segments together
inline constexpr size_t kMostRecordBytes = kMostSegments * 80 + kMostPieces * 16;
// As far as a SegmentPlace reaches.
inline constexpr uint32_t kLastSegment = (uint32_t{1} << 24) - 1;
inline constexpr uint64_t kMostSegmentBytes = uint64_t{1} << 40;

std::vector<std::byte> encode(std::span<const SegmentRecord> records);
// Refuses what no owner would write, saying what: another process's memory is no more to be trusted than a message.
Result<std::vector<SegmentRecord>> decode_records(std::span<const std::byte> bytes);

}  // namespace axon
