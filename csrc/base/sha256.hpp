// SHA-256 (FIPS 180-4) and HMAC over it (RFC 2104): all the cryptography that a handshake needs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace axon {

using Digest = std::array<std::byte, 32>;

class Sha256 {
 public:
  static constexpr size_t kBlockNumBytes = 64;

  Sha256& add(std::span<const std::byte> bytes) noexcept;
  // Call once, at the end.
  Digest finish() noexcept;

 private:
  void compress(const std::byte* block) noexcept;

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, kBlockNumBytes> block_{};
  uint64_t num_bytes_ = 0;
};

class HmacSha256 {
 public:
  explicit HmacSha256(std::span<const std::byte> key) noexcept;

  HmacSha256& add(std::span<const std::byte> bytes) noexcept;
  // Call once, at the end.
  Digest finish() noexcept;

 private:
  Sha256 inner_;
  Sha256 outer_;
};

// Returns whether both are equal, in constant time: the time does not reveal where they differ.
bool equal_in_secret(const Digest& left, std::span<const std::byte> right) noexcept;

}  // namespace axon
