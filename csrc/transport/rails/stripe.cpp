#include "transport/rails/stripe.hpp"

#include <array>
#include <cstring>
#include <span>

namespace axon::transport {

uint64_t StripeSealer::next(const StripeHeader& header) noexcept {
  const uint64_t position = num_sealed_++;
  const auto content = std::as_bytes(std::span(&header, 1)).first(offsetof(StripeHeader, seal));
  const Digest digest = HmacSha256(key_).add(std::as_bytes(std::span(&position, 1))).add(content).finish();
  uint64_t seal = 0;
  std::memcpy(&seal, digest.data(), sizeof seal);
  return seal;
}

}  // namespace axon::transport
