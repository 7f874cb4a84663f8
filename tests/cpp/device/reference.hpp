// What the kernels must compute, bit for bit: elements drawn from a seed, reduced in rank order in float (integers: in
// their own type) and rounded once.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>
#include <random>
#include <vector>

#include "base/data_type.hpp"

namespace axon::testing {

using Bytes = std::vector<std::byte>;

inline float widen(__half value) {
  return __half2float(value);
}
inline float widen(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
template <typename T>
T widen(T value) {
  return value;
}

inline void narrow(float value, __half& result) {
  result = __float2half_rn(value);
}
inline void narrow(float value, __nv_bfloat16& result) {
  result = __float2bfloat16_rn(value);
}
template <typename T>
void narrow(T value, T& result) {
  result = value;
}

template <typename Visitor>
auto with_type(DataType dtype, Visitor visit) {
  switch (dtype) {
    case DataType::kFloat16:
      return visit(__half{});
    case DataType::kBFloat16:
      return visit(__nv_bfloat16{});
    case DataType::kInt32:
      return visit(int32_t{});
    case DataType::kInt64:
      return visit(int64_t{});
    case DataType::kUint8:
      return visit(uint8_t{});
    default:
      return visit(float{});
  }
}

// Small enough that no integer overflows in a product of ten.
inline Bytes draw(DataType dtype, size_t num_elements, std::mt19937& random) {
  return with_type(dtype, [&]<typename T>(T) {
    std::uniform_real_distribution<float> real(std::is_unsigned_v<T> ? 0 : -4, 4);
    std::vector<T> values(num_elements);
    for (T& value : values) narrow(static_cast<decltype(widen(T{}))>(real(random)), value);
    Bytes bytes(num_elements * sizeof(T));
    if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  });
}

template <typename C>
C combine(Reduction reduction, C a, C b) {
  switch (reduction) {
    case Reduction::kProduct:
      return a * b;
    case Reduction::kMin:
      return b < a ? b : a;
    case Reduction::kMax:
      return b > a ? b : a;
    default:
      return a + b;
  }
}

inline Bytes reduced(DataType dtype, Reduction reduction, const std::vector<Bytes>& inputs) {
  return with_type(dtype, [&]<typename T>(T) {
    Bytes result(inputs[0].size());
    for (size_t at = 0; at < result.size(); at += sizeof(T)) {
      T element;
      std::memcpy(&element, &inputs[0][at], sizeof(T));
      auto total = widen(element);
      for (size_t rank = 1; rank < inputs.size(); ++rank) {
        std::memcpy(&element, &inputs[rank][at], sizeof(T));
        total = combine(reduction, total, widen(element));
      }
      if (reduction == Reduction::kAverage) total /= static_cast<decltype(total)>(inputs.size());
      narrow(total, element);
      std::memcpy(&result[at], &element, sizeof(T));
    }
    return result;
  });
}

inline Bytes concatenated(const std::vector<Bytes>& inputs) {
  Bytes all;
  for (const Bytes& input : inputs) all.insert(all.end(), input.begin(), input.end());
  return all;
}

}  // namespace axon::testing
