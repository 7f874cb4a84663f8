// What a process tells its peers about a segment, and the bytes of a list of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "cuda/allocation.hpp"
#include "cuda/device_types.hpp"

namespace axon::ipc {

struct RegistrationExtent {
  int32_t descriptor = -1;  // in the owner's process
  uint64_t num_bytes = 0;   // as mapped there

  bool operator==(const RegistrationExtent&) const = default;
};

struct RegistrationRecord {
  uint32_t number = 0;
  uint64_t num_bytes = 0;
  std::vector<RegistrationExtent> extents;  // in the order of their addresses; none: `legacy` is what opens it
  cuda::LegacyHandle legacy{};

  bool operator==(const RegistrationRecord&) const = default;
};

// How much a process offers at most.
inline constexpr size_t kMostRegistrations = cuda::kRegistrationSlots;
inline constexpr size_t kMostExtents = 8192;  // of all segments together
inline constexpr size_t kMostRecordBytes = kMostRegistrations * 80 + kMostExtents * 16;
// As far as an IpcLocation reaches.
inline constexpr uint32_t kLastRegistration = (uint32_t{1} << 24) - 1;
inline constexpr uint64_t kMostRegistrationBytes = uint64_t{1} << 40;

std::vector<std::byte> encode(std::span<const RegistrationRecord> records);
// Refuses what no owner would write, saying what: another process's memory is no more to be trusted than a message.
Result<std::vector<RegistrationRecord>> decode_records(std::span<const std::byte> bytes);

}  // namespace axon::ipc
