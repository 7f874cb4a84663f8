#include "base/sha256.hpp"

#include <algorithm>
#include <bit>

namespace axon {

// The first 32 bits of the fractions of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2).
static constexpr std::array<uint32_t, 64> kRound{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t read_big_endian(const std::byte* bytes) noexcept {
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word = word << 8 | std::to_integer<uint32_t>(bytes[i]);
  return word;
}

static void write_big_endian(uint64_t number, std::span<std::byte> bytes) noexcept {
  for (size_t i = bytes.size(); i-- > 0; number >>= 8) bytes[i] = static_cast<std::byte>(number);
}

void Sha256::compress(const std::byte* block) noexcept {
  std::array<uint32_t, 64> words;
  for (size_t i = 0; i < 16; ++i) words[i] = read_big_endian(block + 4 * i);
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t early = words[i - 15], late = words[i - 2];
    const uint32_t sigma0 = std::rotr(early, 7) ^ std::rotr(early, 18) ^ early >> 3;
    const uint32_t sigma1 = std::rotr(late, 17) ^ std::rotr(late, 19) ^ late >> 10;
    words[i] = words[i - 16] + sigma0 + words[i - 7] + sigma1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t choice = (e & f) ^ (~e & g);
    const uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
    const uint32_t first = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + choice + kRound[i] + words[i];
    const uint32_t second = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + majority;
    h = g;
    g = f;
    f = e;
    e = d + first;
    d = c;
    c = b;
    b = a;
    a = first + second;
  }
  const std::array<uint32_t, 8> mixed{a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < state_.size(); ++i) state_[i] += mixed[i];
}

Sha256& Sha256::add(std::span<const std::byte> bytes) noexcept {
  while (!bytes.empty()) {
    const size_t filled = num_bytes_ % kBlockNumBytes;
    const size_t num_taken = std::min(bytes.size(), kBlockNumBytes - filled);
    std::copy_n(bytes.begin(), num_taken, block_.begin() + static_cast<std::ptrdiff_t>(filled));
    num_bytes_ += num_taken;
    bytes = bytes.subspan(num_taken);
    if (num_bytes_ % kBlockNumBytes == 0) compress(block_.data());
  }
  return *this;
}

// The padding: a one bit, zeros up to 8 bytes before the end of a block, and the number of bits.
Digest Sha256::finish() noexcept {
  std::array<std::byte, 8> num_bits;
  write_big_endian(num_bytes_ * 8, num_bits);
  static constexpr std::array<std::byte, kBlockNumBytes> kPadding{std::byte{0x80}};
  const size_t filled = (num_bytes_ + num_bits.size()) % kBlockNumBytes;
  add(std::span(kPadding).first(kBlockNumBytes - filled)).add(num_bits);
  Digest digest;
  for (size_t i = 0; i < state_.size(); ++i) write_big_endian(state_[i], std::span(digest).subspan(4 * i, 4));
  return digest;
}

HmacSha256::HmacSha256(std::span<const std::byte> key) noexcept {
  std::array<std::byte, Sha256::kBlockNumBytes> block{};
  if (key.size() > block.size()) {
    std::ranges::copy(Sha256().add(key).finish(), block.begin());
  } else {
    std::ranges::copy(key, block.begin());
  }
  for (std::byte& byte : block) byte ^= std::byte{0x36};
  inner_.add(block);
  for (std::byte& byte : block) byte ^= std::byte{0x36} ^ std::byte{0x5c};
  outer_.add(block);
}

HmacSha256& HmacSha256::add(std::span<const std::byte> bytes) noexcept {
  inner_.add(bytes);
  return *this;
}

Digest HmacSha256::finish() noexcept {
  return outer_.add(inner_.finish()).finish();
}

bool equal_in_secret(const Digest& left, std::span<const std::byte> right) noexcept {
  if (left.size() != right.size()) return false;
  std::byte difference{0};
  for (size_t i = 0; i < left.size(); ++i) difference |= left[i] ^ right[i];
  return difference == std::byte{0};
}

}  // namespace axon
