// The 64 bytes by which a process lets others open memory that it exposes. docs/wire.md gives every byte.
//
//   const RegionHandle handle{.access = Access::kRead, .region = number, .num_bytes = n, .owner = incarnation};
//   const EncodedHandle bytes = handle.encode(key);                 // at the owner
//   Result<RegionHandle> read = RegionHandle::decode(bytes);        // anywhere
//   if (read.value().is_sealed_by(key, bytes)) …                    // at the owner
//
// A handle contains no address. Its last 16 bytes are from an HMAC-SHA256 keyed with a secret of the region, so only
// the owner can make or narrow a handle.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/nonce.hpp"
#include "base/status.hpp"

namespace axon::rpc {

enum class Access : uint8_t { kNone = 0, kRead = 1, kWrite = 2, kReadWrite = 3 };

constexpr bool allows(Access allowed, Access wanted) noexcept {
  return (static_cast<uint8_t>(wanted) & ~static_cast<uint8_t>(allowed)) == 0;
}

constexpr const char* name_of(Access access) noexcept {
  constexpr std::array<const char*, 4> names{"none", "r", "w", "rw"};
  return names[static_cast<uint8_t>(access) & 3];
}

using EncodedHandle = std::array<std::byte, 64>;

struct RegionHandle {
  static constexpr uint8_t kVersion = 1;

  uint8_t version = kVersion;
  uint8_t kind = 0;  // 0: memory, of the host or a device
  Access access = Access::kNone;
  uint8_t reserved = 0;
  uint32_t region = 0;      // the index of the region at its owner
  uint32_t generation = 0;  // how often the index has been used
  uint32_t reserved_too = 0;
  uint64_t offset = 0;  // in the region
  uint64_t num_bytes = 0;
  uint64_t owner = 0;  // the incarnation of the owner's runtime
  uint64_t peer = 0;   // the incarnation of the only runtime that may open it; 0: any

  EncodedHandle encode(const Nonce& key) const noexcept;
  // Fails for other lengths, versions and kinds.
  static Result<RegionHandle> decode(std::span<const std::byte> bytes);
  // Returns whether the owner of the key has made the handle that `bytes` encode.
  bool is_sealed_by(const Nonce& key, std::span<const std::byte> bytes) const noexcept;
};
static_assert(sizeof(RegionHandle) == 48);

}  // namespace axon::rpc
