// Encodes the reason for which a receiver refuses a message that waits at its sender (NACK). Every transport uses this
// encoding.
//
//   const nack::Encoded reason(why);
//   …                                     // send reason.bytes()
//   const Status there = nack::decode(bytes);
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "base/status.hpp"

namespace axon::nack {

// An ErrorCode, then as much of the text as fits. A success encodes to nothing: the payload is no longer needed.
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

// Returns the status with which the sender's transfer ends, which is never a success. A mismatch keeps its code, since
// its text names both ranks; everything else becomes kAborted.
Status decode(std::span<const std::byte> bytes);

}  // namespace axon::nack
