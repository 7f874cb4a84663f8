#include "rpc/core/one_sided/region_handle.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/sha256.hpp"

namespace axon::rpc {

static constexpr size_t kSealNumBytes = sizeof(EncodedHandle) - sizeof(RegionHandle);
static_assert(kSealNumBytes == 16);

static Digest seal_of(const RegionHandle& handle, const Nonce& key) noexcept {
  return HmacSha256(key).add(std::as_bytes(std::span(&handle, 1))).finish();
}

EncodedHandle RegionHandle::encode(const Nonce& key) const noexcept {
  EncodedHandle bytes;
  std::memcpy(bytes.data(), this, sizeof *this);
  const Digest seal = seal_of(*this, key);
  std::copy_n(seal.begin(), kSealNumBytes, bytes.begin() + sizeof *this);
  return bytes;
}

Result<RegionHandle> RegionHandle::decode(std::span<const std::byte> bytes) {
  if (bytes.size() != sizeof(EncodedHandle)) {
    return Status(ErrorCode::kInvalidArgument, "handle is " + std::to_string(bytes.size()) +
                                                   " bytes long; allowed: the 64 bytes that Region.handle() returned");
  }
  RegionHandle handle;
  std::memcpy(&handle, bytes.data(), sizeof handle);
  const bool is_known = handle.version == kVersion && handle.kind == 0 && handle.access != Access::kNone &&
                        allows(Access::kReadWrite, handle.access) && handle.reserved == 0 && handle.reserved_too == 0;
  if (is_known) return handle;
  return Status(ErrorCode::kInvalidArgument,
                "handle has version " + std::to_string(handle.version) + " and kind " + std::to_string(handle.kind) +
                    "; allowed: bytes that Region.handle() of the same version of torch_axon returned");
}

bool RegionHandle::is_sealed_by(const Nonce& key, std::span<const std::byte> bytes) const noexcept {
  Digest expected = seal_of(*this, key);
  Digest given{};
  std::copy_n(bytes.begin() + sizeof *this, kSealNumBytes, given.begin());
  std::fill(expected.begin() + kSealNumBytes, expected.end(), std::byte{});
  return equal_in_secret(expected, given);
}

}  // namespace axon::rpc
