#include "transport/rails/stripe.hpp"

#include <array>
#include <cstring>
#include <span>

namespace axon::transport {

uint64_t StripeSealer::next(const StripeHeader& header) noexcept {
  const std::array<uint64_t, 4> sealed{num_sealed_++, header.ticket, header.offset, header.num_bytes};
  const Digest digest = HmacSha256(key_).add(std::as_bytes(std::span(sealed))).finish();
  uint64_t seal = 0;
  std::memcpy(&seal, digest.data(), sizeof seal);
  return seal;
}

}  // namespace axon::transport
