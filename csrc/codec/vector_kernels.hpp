// The kernels in terms of vectors, for AVX2 and AVX-512. A file that includes this first defines, in the namespace
// below, the functions that are only used here, which keep the elements' order, and three types. These are `Vector`,
// `Words` (two vectors of 16-bit elements, first and second) and `Mask` (a bit per byte of a vector).
#pragma once

#include "codec/kernels.hpp"

namespace axon::codec {
namespace {

constexpr size_t kVectorBytes = sizeof(Vector);
constexpr size_t kLowPlaneBytes = kFrameElements * sizeof(uint16_t);  // float32 only

inline Words load_words(const std::byte* data) {
  return {load(data), load(data + kVectorBytes)};
}

// Stores the lower bytes as the last plane, and the higher ones as exponents.
inline void split_words(Words words, std::byte* plane, uint8_t* exponents, Vector& largest) {
  const Vector highest = high_bytes(words.first, words.second);
  store(plane, low_bytes(words.first, words.second));
  store(exponents, highest);
  largest = max_of_bytes(largest, highest);
}

inline uint8_t largest_byte(Vector vector) {
  uint8_t bytes[kVectorBytes];
  store(bytes, vector);
  uint8_t largest = 0;
  for (const uint8_t byte : bytes) largest = byte > largest ? byte : largest;
  return largest;
}

uint8_t split_bfloat16(const std::byte* data, std::byte* planes, Exponents& exponents) {
  Vector largest = fill(0);
  for (size_t i = 0; i < kFrameElements; i += kVectorBytes) {
    const Words words = load_words(data + 2 * i);
    split_words({rotate_words_left(words.first), rotate_words_left(words.second)}, planes + i, exponents.data() + i,
                largest);
  }
  return largest_byte(largest);
}

// Stores the lower halves of two vectors of 32-bit elements, and returns the higher ones.
inline Vector split_low_plane(const std::byte* data, std::byte* plane) {
  const Vector first = rotate_double_words_left(load(data));
  const Vector second = rotate_double_words_left(load(data + kVectorBytes));
  store(plane, low_words(first, second));
  return high_words(first, second);
}

uint8_t split_float32(const std::byte* data, std::byte* planes, Exponents& exponents) {
  Vector largest = fill(0);
  for (size_t i = 0; i < kFrameElements; i += kVectorBytes) {
    const Vector first = split_low_plane(data + 4 * i, planes + 2 * i);
    const Vector second = split_low_plane(data + 4 * i + 2 * kVectorBytes, planes + 2 * i + kVectorBytes);
    split_words({first, second}, planes + kLowPlaneBytes + i, exponents.data() + i, largest);
  }
  return largest_byte(largest);
}

// Returns the codes of as many elements as a vector has bytes, in 16-bit words of two.
inline Vector pairs_of_codes(const uint8_t* exponents, Vector largest, Mask& escapes) {
  return pair_halves(codes_of(load(exponents), largest, escapes));
}

size_t code(const Exponents& exponents, uint8_t largest, std::byte* codes, EscapeMasks& escapes) {
  const Vector largest_everywhere = fill(largest);
  size_t num_escapes = 0;
  for (size_t i = 0; i < kFrameElements; i += 2 * kVectorBytes) {
    Mask masks[2];
    const Vector first = pairs_of_codes(exponents.data() + i, largest_everywhere, masks[0]);
    const Vector second = pairs_of_codes(exponents.data() + i + kVectorBytes, largest_everywhere, masks[1]);
    store(codes + i / 2, low_bytes(first, second));
    std::memcpy(reinterpret_cast<std::byte*>(escapes.data()) + i / 8, masks, sizeof masks);
    num_escapes += static_cast<size_t>(std::popcount(masks[0]) + std::popcount(masks[1]));
  }
  return num_escapes;
}

struct ByCode {
  Vector exponents;  // by code, in each 16 bytes

  explicit ByCode(uint8_t largest) {
    uint8_t table[16]{};
    for (uint8_t i = 0; i < kCodeOfZero; ++i) table[i] = static_cast<uint8_t>(largest - i);
    exponents = fill_16(table);
  }
};

// Returns the rotated upper 16 bits of elements, from the bytes of the last plane and the codes.
inline Words join_words(Vector plane, Vector codes, const ByCode& by_code, size_t& num_escapes) {
  num_escapes += static_cast<size_t>(std::popcount(equal_bytes(codes, fill(kCodeOfEscape))));
  return zip_bytes(plane, look_up(by_code.exponents, codes));
}

size_t join_bfloat16(const std::byte* planes, const std::byte* codes, uint8_t largest, std::byte* data) {
  const ByCode by_code(largest);
  size_t num_escapes = 0;
  for (size_t i = 0; i < kFrameElements; i += 2 * kVectorBytes) {
    const Words halves = split_halves(load(codes + i / 2));
    std::byte* out = data + 2 * i;
    const std::byte* plane = planes + i;
    for (const Vector each : {halves.first, halves.second}) {
      const Words words = join_words(load(plane), each, by_code, num_escapes);
      store(out, rotate_words_right(words.first));
      store(out + kVectorBytes, rotate_words_right(words.second));
      plane += kVectorBytes;
      out += 2 * kVectorBytes;
    }
  }
  return num_escapes;
}

// Stores two vectors of elements, from their lower and upper halves.
inline void join_low_plane(Vector low, Vector high, std::byte* data) {
  const Words elements = zip_words(low, high);
  store(data, rotate_double_words_right(elements.first));
  store(data + kVectorBytes, rotate_double_words_right(elements.second));
}

size_t join_float32(const std::byte* planes, const std::byte* codes, uint8_t largest, std::byte* data) {
  const ByCode by_code(largest);
  size_t num_escapes = 0;
  for (size_t i = 0; i < kFrameElements; i += 2 * kVectorBytes) {
    const Words halves = split_halves(load(codes + i / 2));
    size_t first = i;
    for (const Vector each : {halves.first, halves.second}) {
      const Words high = join_words(load(planes + kLowPlaneBytes + first), each, by_code, num_escapes);
      join_low_plane(load(planes + 2 * first), high.first, data + 4 * first);
      join_low_plane(load(planes + 2 * first + kVectorBytes), high.second, data + 4 * first + 2 * kVectorBytes);
      first += kVectorBytes;
    }
  }
  return num_escapes;
}

constexpr KernelTable make_table(const char* name) {
  return {.name = name,
          .pays_below = 1.5e9,
          .split = {split_bfloat16, split_float32},
          .code = code,
          .join = {join_bfloat16, join_float32}};
}

}  // namespace
}  // namespace axon::codec
