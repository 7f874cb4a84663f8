// Divides vectors of integers by one divisor, for which x86-64 has no instruction: by a multiplication, exactly.
// Granlund and Montgomery, Division by Invariant Integers using Multiplication (1994), figure 4.1. See formats.hpp for
// how this is compiled.
#pragma once

#include <bit>
#include <limits>
#include <type_traits>

#include "collectives/arithmetic/formats.hpp"

namespace axon::arithmetic {
namespace {

// The upper half of each product, and the products of the lower halves of 64-bit lanes. Masked as in formats.hpp.
#if AXON_VECTOR_BYTES == 64
inline Vector<uint16_t> multiply_high(Vector<uint16_t> left, Vector<uint16_t> right) {
  return (Vector<uint16_t>)_mm512_maskz_mulhi_epu16(0xffffffff, (__m512i)left, (__m512i)right);
}
inline Vector<uint64_t> multiply_low_halves(Vector<uint64_t> left, Vector<uint64_t> right) {
  return (Vector<uint64_t>)_mm512_maskz_mul_epu32(0xff, (__m512i)left, (__m512i)right);
}
#elif AXON_VECTOR_BYTES == 32
inline Vector<uint16_t> multiply_high(Vector<uint16_t> left, Vector<uint16_t> right) {
  return (Vector<uint16_t>)_mm256_mulhi_epu16((__m256i)left, (__m256i)right);
}
inline Vector<uint64_t> multiply_low_halves(Vector<uint64_t> left, Vector<uint64_t> right) {
  return (Vector<uint64_t>)_mm256_mul_epu32((__m256i)left, (__m256i)right);
}
#else
inline Vector<uint16_t> multiply_high(Vector<uint16_t> left, Vector<uint16_t> right) {
  return (Vector<uint16_t>)_mm_mulhi_epu16((__m128i)left, (__m128i)right);
}
inline Vector<uint64_t> multiply_low_halves(Vector<uint64_t> left, Vector<uint64_t> right) {
  return (Vector<uint64_t>)_mm_mul_epu32((__m128i)left, (__m128i)right);
}
#endif

inline Vector<uint32_t> multiply_high(Vector<uint32_t> left, Vector<uint32_t> right) {
  const auto a = (Vector<uint64_t>)left, b = (Vector<uint64_t>)right;
  const Vector<uint64_t> even = multiply_low_halves(a, b) >> 32;
  const Vector<uint64_t> odd = multiply_low_halves(a >> 32, b >> 32) & ~uint64_t{0xffffffff};
  return (Vector<uint32_t>)(even | odd);
}

// Multiplies by halves, as on paper; no sum here overflows.
inline Vector<uint64_t> multiply_high(Vector<uint64_t> left, Vector<uint64_t> right) {
  const Vector<uint64_t> left_high = left >> 32, right_high = right >> 32;
  const Vector<uint64_t> middle = multiply_low_halves(left_high, right) + (multiply_low_halves(left, right) >> 32);
  const Vector<uint64_t> other_middle = multiply_low_halves(left, right_high) + (middle & 0xffffffff);
  return multiply_low_halves(left_high, right_high) + (middle >> 32) + (other_middle >> 32);
}

// A divisor from 1 to the maximum of U; U has at least 16 bits.
template <typename U>
class Divisor {
 public:
  explicit Divisor(uint32_t divisor) {
    const int num_bits = std::bit_width(divisor - 1);
    // 2^64 (2^num_bits - divisor) / divisor, 32 bits at a time. The paper needs as many bits of it as U has, and 1
    // more.
    const uint64_t first = ((uint64_t{1} << num_bits) - divisor) << 32;
    const uint64_t fraction = (first / divisor << 32) | ((first % divisor << 32) / divisor);
    factor_ = Vector<U>{} + static_cast<U>((fraction >> (64 - std::numeric_limits<U>::digits)) + 1);
    first_shift_ = num_bits == 0 ? 0 : 1;
    second_shift_ = static_cast<U>(num_bits == 0 ? 0 : num_bits - 1);
  }

  Vector<U> quotients(Vector<U> values) const {
    const Vector<U> high = multiply_high(values, factor_);
    return (high + ((values - high) >> first_shift_)) >> second_shift_;
  }

 private:
  Vector<U> factor_;
  U first_shift_;
  U second_shift_;
};

// Treats bytes as the two halves of 16-bit lanes, since bytes have neither products nor shifts.
template <>
class Divisor<uint8_t> {
 public:
  explicit Divisor(uint32_t divisor) : pairs_(divisor) {}

  Vector<uint8_t> quotients(Vector<uint8_t> values) const {
    const auto pairs = (Vector<uint16_t>)values;
    return (Vector<uint8_t>)(pairs_.quotients(pairs & 0xff) | (pairs_.quotients(pairs >> 8) << 8));
  }

 private:
  Divisor<uint16_t> pairs_;
};

// Returns all ones where a value is negative. SSE2 compares no 64-bit lanes, and no instruction shifts bytes.
template <typename T>
inline Vector<std::make_unsigned_t<T>> signs_of(Vector<T> values) {
  using Magnitudes = Vector<std::make_unsigned_t<T>>;
  if constexpr (sizeof(T) == 8) {
    return -((Magnitudes)values >> 63);
  } else {
    return (Magnitudes)(values < 0);
  }
}

// Rounds towards zero: the quotient of the magnitude gets the sign.
template <typename T>
inline Vector<T> divide(Vector<T> values, const Divisor<std::make_unsigned_t<T>>& divisor) {
  using Magnitudes = Vector<std::make_unsigned_t<T>>;
  if constexpr (std::is_unsigned_v<T>) {
    return divisor.quotients(values);
  } else {
    const Magnitudes signs = signs_of<T>(values);
    return (Vector<T>)((divisor.quotients(((Magnitudes)values ^ signs) - signs) ^ signs) - signs);
  }
}

}  // namespace
}  // namespace axon::arithmetic
