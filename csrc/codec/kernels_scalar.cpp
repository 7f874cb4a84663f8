#include <algorithm>
#include <bit>
#include <cstring>

#include "codec/kernels.hpp"

namespace axon::codec {
namespace {

constexpr size_t kLowPlaneBytes = kFrameElements * sizeof(uint16_t);  // float32 only

uint8_t split_bfloat16(const std::byte* data, std::byte* planes, Exponents& exponents) {
  uint8_t largest = 0;
  for (size_t i = 0; i < kFrameElements; ++i) {
    uint16_t element = 0;
    std::memcpy(&element, data + i * sizeof element, sizeof element);
    element = std::rotl(element, 1);
    planes[i] = static_cast<std::byte>(element);
    exponents[i] = static_cast<uint8_t>(element >> 8);
    largest = std::max(largest, exponents[i]);
  }
  return largest;
}

uint8_t split_float32(const std::byte* data, std::byte* planes, Exponents& exponents) {
  uint8_t largest = 0;
  for (size_t i = 0; i < kFrameElements; ++i) {
    uint32_t element = 0;
    std::memcpy(&element, data + i * sizeof element, sizeof element);
    element = std::rotl(element, 1);
    const auto low = static_cast<uint16_t>(element);
    std::memcpy(planes + i * sizeof low, &low, sizeof low);
    planes[kLowPlaneBytes + i] = static_cast<std::byte>(element >> 16);
    exponents[i] = static_cast<uint8_t>(element >> 24);
    largest = std::max(largest, exponents[i]);
  }
  return largest;
}

uint8_t code_of(uint8_t exponent, uint8_t largest) {
  if (exponent == 0) return kCodeOfZero;
  const auto distance = static_cast<uint8_t>(largest - exponent);
  return distance < kCodeOfZero ? distance : kCodeOfEscape;
}

size_t code(const Exponents& exponents, uint8_t largest, std::byte* codes, EscapeMasks& escapes) {
  size_t num_escapes = 0;
  escapes.fill(0);
  for (size_t i = 0; i < kFrameElements; i += 2) {
    const uint8_t even = code_of(exponents[i], largest);
    const uint8_t odd = code_of(exponents[i + 1], largest);
    codes[i / 2] = static_cast<std::byte>(even | odd << 4);
    const uint64_t pair = (even == kCodeOfEscape ? 1u : 0u) | (odd == kCodeOfEscape ? 2u : 0u);
    escapes[i / 64] |= pair << i % 64;
    num_escapes += static_cast<size_t>(std::popcount(pair));
  }
  return num_escapes;
}

// The exponents by code.
std::array<uint8_t, 16> exponents_by_code(uint8_t largest) {
  std::array<uint8_t, 16> exponents{};
  for (size_t i = 0; i < kCodeOfZero; ++i) exponents[i] = static_cast<uint8_t>(largest - i);
  return exponents;
}

uint8_t code_at(const std::byte* codes, size_t i) {
  return static_cast<uint8_t>(codes[i / 2]) >> i % 2 * 4 & 0xF;
}

size_t join_bfloat16(const std::byte* planes, const std::byte* codes, uint8_t largest, std::byte* data) {
  const std::array<uint8_t, 16> exponents = exponents_by_code(largest);
  size_t num_escapes = 0;
  for (size_t i = 0; i < kFrameElements; ++i) {
    const uint8_t code = code_at(codes, i);
    num_escapes += code == kCodeOfEscape;
    const auto rotated = static_cast<uint16_t>(static_cast<uint8_t>(planes[i]) | exponents[code] << 8);
    const uint16_t element = std::rotr(rotated, 1);
    std::memcpy(data + i * sizeof element, &element, sizeof element);
  }
  return num_escapes;
}

size_t join_float32(const std::byte* planes, const std::byte* codes, uint8_t largest, std::byte* data) {
  const std::array<uint8_t, 16> exponents = exponents_by_code(largest);
  size_t num_escapes = 0;
  for (size_t i = 0; i < kFrameElements; ++i) {
    const uint8_t code = code_at(codes, i);
    num_escapes += code == kCodeOfEscape;
    uint16_t low = 0;
    std::memcpy(&low, planes + i * sizeof low, sizeof low);
    const auto middle = static_cast<uint32_t>(planes[kLowPlaneBytes + i]);
    const uint32_t element = std::rotr(low | middle << 16 | uint32_t{exponents[code]} << 24, 1);
    std::memcpy(data + i * sizeof element, &element, sizeof element);
  }
  return num_escapes;
}

}  // namespace

constinit const KernelTable kScalarKernels{.name = "scalar",
                                           .pays_below = 0.2e9,
                                           .split = {split_bfloat16, split_float32},
                                           .code = code,
                                           .join = {join_bfloat16, join_float32}};

}  // namespace axon::codec
