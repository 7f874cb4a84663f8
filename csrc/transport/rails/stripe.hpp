// A stripe: a part of a long message that travels over one rail. Its header precedes it (docs/wire.md).
//
//   StripeSealer sealer(key);                 // one for each end of a rail
//   header.seal = sealer.next(header);        // sender
//   if (header.seal != sealer.next(header))   // receiver: not from the process at the other end, or repeated
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/sha256.hpp"
#include "codec/codec.hpp"

namespace axon::transport {

struct StripeHeader {
  uint64_t ticket = 0;       // of the receiver's CTS
  uint64_t offset = 0;       // in the message
  uint32_t num_bytes = 0;    // of the stripe
  uint32_t num_carried = 0;  // bytes that follow: the stripe's, or those of its frames
  uint8_t format = 0;        // 0: the stripe as it is; otherwise a codec::Format
  std::array<uint8_t, 7> reserved{};
  uint64_t seal = 0;
};
static_assert(sizeof(StripeHeader) == 40 && std::has_unique_object_representations_v<StripeHeader>);

// Returns whether as many bytes follow as a stripe of this length and format can have.
constexpr bool has_valid_length(const StripeHeader& header) noexcept {
  if (header.format == 0) return header.num_carried == header.num_bytes;
  const auto format = static_cast<codec::Format>(header.format);
  if (format != codec::Format::kBFloat16 && format != codec::Format::kFloat32) return false;
  return header.num_carried <= codec::most_encoded_bytes(format, header.num_bytes);
}

inline constexpr size_t kLeastStripeBytes = size_t{64} << 10;
inline constexpr size_t kMostStripeBytes = size_t{1} << 20;

// Returns the length of all stripes of a message but the last one: short enough for every rail to get one.
constexpr size_t stripe_bytes_of(size_t message_num_bytes, size_t num_rails) noexcept {
  const size_t share = (message_num_bytes + num_rails - 1) / num_rails;
  const size_t rounded = (share + kLeastStripeBytes - 1) / kLeastStripeBytes * kLeastStripeBytes;
  return std::clamp(rounded, kLeastStripeBytes, kMostStripeBytes);
}

constexpr size_t num_stripes_of(size_t message_num_bytes, size_t stripe_num_bytes) noexcept {
  return (message_num_bytes + stripe_num_bytes - 1) / stripe_num_bytes;
}

constexpr bool is_stripe_length(uint64_t num_bytes) noexcept {
  return num_bytes >= kLeastStripeBytes && num_bytes <= kMostStripeBytes && num_bytes % kLeastStripeBytes == 0;
}

// Seals the headers of one rail in order. A seal is the beginning of an HMAC, keyed with the handshake's result, over
// the header's position and content. A header of another process, connection or position has another seal.
class StripeSealer {
 public:
  explicit StripeSealer(const Digest& key) noexcept : key_(key) {}

  // Returns the seal of the next header.
  uint64_t next(const StripeHeader& header) noexcept;

 private:
  Digest key_;
  uint64_t num_sealed_ = 0;
};

}  // namespace axon::transport
