// Reference reductions, one scalar at a time and in the plainest form, against which the vector kernels are checked.
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "collectives/arithmetic/arithmetic.hpp"

namespace axon::reference {

using Bytes = std::vector<std::byte>;

// How a type is converted to its accumulator type, and back.
template <typename T>
struct Codec {
  using Stored = T;
  using Accumulator = T;
  static Accumulator decode(Stored stored) { return stored; }
  static Stored encode(Accumulator value) { return value; }
};

// A 16-bit binary floating-point format, computed in double arithmetic alone.
template <int kMantissaBits, int kBias>
struct HalfCodec {
  using Stored = uint16_t;
  using Accumulator = float;
  static constexpr int kExponents = 1 << (15 - kMantissaBits);
  static constexpr int kMantissas = 1 << kMantissaBits;

  static float decode(uint16_t bits) {
    const int exponent = (bits & 0x7fff) >> kMantissaBits;
    const int mantissa = bits & (kMantissas - 1);
    double magnitude =
        std::ldexp(mantissa + (exponent > 0 ? kMantissas : 0), std::max(exponent, 1) - kBias - kMantissaBits);
    if (exponent == kExponents - 1) {
      magnitude = mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
    }
    return static_cast<float>(std::copysign(magnitude, (bits & 0x8000) != 0 ? -1.0 : 1.0));
  }

  static uint16_t encode(float value) {
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const uint16_t infinity = static_cast<uint16_t>((kExponents - 1) << kMantissaBits);
    if (std::isnan(value)) return sign | infinity | 1;
    if (std::isinf(value)) return sign | infinity;
    if (value == 0) return sign;
    const int exponent = std::max(std::ilogb(value), 1 - kBias);
    // In units of the last place. nearbyint rounds to nearest, ties to even. A carry propagates into the exponent.
    const double units = std::nearbyint(std::ldexp(std::fabs(static_cast<double>(value)), kMantissaBits - exponent));
    const int bits = ((exponent + kBias - 1) << kMantissaBits) + static_cast<int>(units);
    return sign | static_cast<uint16_t>(std::min<int>(bits, infinity));
  }
};

using Float16Codec = HalfCodec<10, 15>;
using BFloat16Codec = HalfCodec<7, 127>;

struct BoolCodec {
  using Stored = uint8_t;
  using Accumulator = bool;
  static bool decode(uint8_t stored) { return stored != 0; }
  static uint8_t encode(bool value) { return value ? 1 : 0; }
};

// Calls `function` with the codec of a type that can be reduced.
template <typename Function>
auto with_codec(DataType dtype, Function function) {
  switch (dtype) {
    case DataType::kBool:
      return function(BoolCodec{});
    case DataType::kInt8:
      return function(Codec<int8_t>{});
    case DataType::kInt16:
      return function(Codec<int16_t>{});
    case DataType::kUint16:
      return function(Codec<uint16_t>{});
    case DataType::kInt32:
      return function(Codec<int32_t>{});
    case DataType::kUint32:
      return function(Codec<uint32_t>{});
    case DataType::kInt64:
      return function(Codec<int64_t>{});
    case DataType::kUint64:
      return function(Codec<uint64_t>{});
    case DataType::kFloat16:
      return function(Float16Codec{});
    case DataType::kBFloat16:
      return function(BFloat16Codec{});
    case DataType::kFloat32:
      return function(Codec<float>{});
    case DataType::kFloat64:
      return function(Codec<double>{});
    case DataType::kComplex64:
      return function(Codec<std::complex<float>>{});
    case DataType::kComplex128:
      return function(Codec<std::complex<double>>{});
    default:
      return function(Codec<uint8_t>{});
  }
}

template <typename T>
constexpr bool kIsComplex = !std::is_arithmetic_v<T>;

template <typename T>
T reduce(Reduction reduction, T left, T right) {
  if constexpr (kIsComplex<T>) {
    return left + right;
  } else if constexpr (std::is_integral_v<T>) {
    // Unsigned arithmetic wraps without undefined behaviour.
    const auto a = static_cast<uint64_t>(left), b = static_cast<uint64_t>(right);
    const uint64_t sum = a + b, product = a * b;
    if (reduction == Reduction::kProduct) return static_cast<T>(product);
    if (reduction == Reduction::kBitAnd) return static_cast<T>(a & b);
    if (reduction == Reduction::kBitOr) return static_cast<T>(a | b);
    if (reduction == Reduction::kBitXor) return static_cast<T>(a ^ b);
    if (reduction == Reduction::kMin) return left < right ? left : right;
    if (reduction == Reduction::kMax) return left > right ? left : right;
    return static_cast<T>(sum);
  } else {
    if (reduction == Reduction::kProduct) return left * right;
    if (reduction == Reduction::kMin) return std::isnan(left) || left < right ? left : right;
    if (reduction == Reduction::kMax) return std::isnan(left) || left > right ? left : right;
    return left + right;
  }
}

template <typename T>
T finish(const collectives::ReductionPlan& plan, T value) {
  if (plan.reduction != Reduction::kAverage) return value;
  if constexpr (kIsComplex<T>) return value / static_cast<typename T::value_type>(plan.num_ranks);
  return value / static_cast<T>(plan.num_ranks);
}

template <typename T>
T begin(const collectives::ReductionPlan& plan, T value) {
  if (plan.reduction != Reduction::kPremulSum) return value;
  if constexpr (kIsComplex<T>) return value * static_cast<typename T::value_type>(plan.premul_factor);
  if constexpr (std::is_floating_point_v<T>) return value * static_cast<T>(plan.premul_factor);
  return value;  // refused by check()
}

template <typename T>
T element(const Bytes& bytes, size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

inline Bytes combine(const collectives::ReductionPlan& plan, const std::vector<Bytes>& operands, size_t num_operands) {
  return with_codec(plan.dtype, [&]<typename C>(C) {
    using Stored = typename C::Stored;
    Bytes output(operands[0].size());
    for (size_t i = 0; i < output.size() / sizeof(Stored); ++i) {
      auto value = begin(plan, C::decode(element<Stored>(operands[0], i)));
      for (size_t k = 1; k < num_operands; ++k) {
        value = reduce(plan.reduction, value, begin(plan, C::decode(element<Stored>(operands[k], i))));
      }
      const Stored result = C::encode(finish(plan, value));
      std::memcpy(output.data() + i * sizeof(Stored), &result, sizeof(result));
    }
    return output;
  });
}

// Compares bitwise, except that all NaNs are equal.
template <typename T>
bool same(T a, T b) {
  if constexpr (kIsComplex<T>) return same(a.real(), b.real()) && same(a.imag(), b.imag());
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  }
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

// Returns the index of the first element in which two arrays differ, or their length.
inline size_t first_difference(DataType dtype, const Bytes& left, const Bytes& right) {
  return with_codec(dtype, [&]<typename C>(C) {
    using Stored = typename C::Stored;
    const size_t num_elements = left.size() / sizeof(Stored);
    for (size_t i = 0; i < num_elements; ++i) {
      if (!same(C::decode(element<Stored>(left, i)), C::decode(element<Stored>(right, i)))) return i;
    }
    return num_elements;
  });
}

}  // namespace axon::reference
