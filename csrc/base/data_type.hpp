// Element types and reductions, as encoded on the wire. Values are part of the protocol: append, never renumber.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace axon {

/// Type of the elements of a tensor.
enum class DataType : uint8_t {
  kByte = 0,  // opaque bytes: float8 and anything else that is only moved
  kBool = 1,
  kInt8 = 2,
  kUint8 = 3,
  kInt16 = 4,
  kUint16 = 5,
  kInt32 = 6,
  kUint32 = 7,
  kInt64 = 8,
  kUint64 = 9,
  kFloat16 = 10,
  kBFloat16 = 11,
  kFloat32 = 12,
  kFloat64 = 13,
  kComplex64 = 14,
  kComplex128 = 15,
};

/// How a collective combines the elements of the ranks.
enum class Reduction : uint8_t {
  kNone = 0,
  kSum = 1,
  kAverage = 2,
  kProduct = 3,
  kMin = 4,
  kMax = 5,
  kBitAnd = 6,
  kBitOr = 7,
  kBitXor = 8,
  kPremulSum = 9,
};

/// @param type a type, which may come from the wire: values that name none are allowed
/// @return the number of bytes of an element; 1 for a value that names no type
constexpr size_t size_of(DataType type) noexcept {
  constexpr std::array<uint8_t, 16> kNumBytes{1, 1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 8, 16};
  const auto index = static_cast<size_t>(type);
  return index < kNumBytes.size() ? kNumBytes[index] : 1;
}
/// @param type a type
/// @return its name in messages for users, which is never freed
const char* name_of(DataType type) noexcept;
/// @param reduction a reduction
/// @return its name in messages for users, which is never freed
const char* name_of(Reduction reduction) noexcept;

}  // namespace axon
