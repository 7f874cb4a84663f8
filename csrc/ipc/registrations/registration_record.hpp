// The record that a process publishes about a registration, and the encoding of a list of records. Plain values.
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
  std::vector<RegistrationExtent> extents;  // ordered by address; empty if `legacy` opens the memory
  cuda::LegacyHandle legacy{};

  bool operator==(const RegistrationRecord&) const = default;
};

// Upper limits of what a process exports.
inline constexpr size_t kMostRegistrations = cuda::kRegistrationSlots;
inline constexpr size_t kMostExtents = 8192;  // of all registrations together
inline constexpr size_t kMostRecordBytes = kMostRegistrations * 80 + kMostExtents * 16;
// The largest number that fits into an IpcLocation.
inline constexpr uint32_t kLastRegistration = (uint32_t{1} << 24) - 1;
inline constexpr uint64_t kMostRegistrationBytes = uint64_t{1} << 40;

std::vector<std::byte> encode(std::span<const RegistrationRecord> records);
// Rejects records that no owner would write, and says why. Memory of another process is as untrusted as a message.
Result<std::vector<RegistrationRecord>> decode_records(std::span<const std::byte> bytes);

}  // namespace axon::ipc
