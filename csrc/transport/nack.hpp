// Why a receiver refuses a message that waits at its sender (NACK): what travels back, over every transport.
//
//   const nack::Encoded reason(why);
//   …                                     // reason.bytes() travel
//   const Status there = nack::decode(bytes);
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "base/status.hpp"

namespace axon::nack {

// An ErrorCode, and as much of the text as fits; nothing for a success: the payload is just not needed any more.
// Allocates nothing.
class Encoded {
 public:
  static constexpr size_t kMostBytes = 512;

  explicit Encoded(const Status& why) noexcept;
  std::span<const std::byte> bytes() const noexcept { return std::span(bytes_).first(num_bytes_); }

 private:
  std::array<std::byte, kMostBytes> bytes_;
  size_t num_bytes_ = 0;
};

// What the sender's transfer ends with; never a success. A mismatch stays one, since its text names both ranks;
// everything else is kAborted.
Status decode(std::span<const std::byte> bytes);

}  // namespace axon::nack
