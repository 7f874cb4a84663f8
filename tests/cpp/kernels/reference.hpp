// Expected results of the kernels, bit for bit: the host's arithmetic in rank order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>

#include "base/data_type.hpp"
#include "collectives/arithmetic/arithmetic.hpp"
#include "kernels/device_buffer.hpp"

namespace axon::testing {

inline constexpr double kPremulFactor = 0.3;

template <typename T>
void append(Bytes& bytes, T value) {
  const auto* begin = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), begin, begin + sizeof value);
}

// Returns floating-point values within ±4, so that products of ten stay finite; integers use all bits, and wrap around.
inline Bytes draw(DataType dtype, size_t num_elements, std::mt19937& random) {
  if (dtype != DataType::kBool && dtype < DataType::kFloat16)
    return random_bytes(num_elements * size_of(dtype), random);
  std::uniform_real_distribution<float> real(-4, 4);
  const size_t num_bytes = num_elements * size_of(dtype);
  Bytes bytes;
  bytes.reserve(num_bytes);
  while (bytes.size() < num_bytes) {
    switch (dtype) {
      case DataType::kFloat16:
        append(bytes, __float2half_rn(real(random)));
        break;
      case DataType::kBFloat16:
        append(bytes, __float2bfloat16_rn(real(random)));
        break;
      case DataType::kFloat32:
      case DataType::kComplex64:
        append(bytes, real(random));
        break;
      case DataType::kFloat64:
      case DataType::kComplex128:
        append(bytes, static_cast<double>(real(random)) / 3);
        break;
      default:
        append(bytes, static_cast<uint8_t>(random() % 2));
    }
  }
  return bytes;
}

inline Bytes reduced(DataType dtype, Reduction reduction, const std::vector<Bytes>& inputs) {
  const collectives::ReductionPlan plan{.dtype = dtype,
                                        .reduction = reduction,
                                        .num_ranks = static_cast<int>(inputs.size()),
                                        .premul_factor = kPremulFactor};
  Bytes result(inputs[0].size());
  std::vector<ConstBuffer> operands;
  for (const Bytes& input : inputs) operands.push_back({.data = input.data()});
  combine(plan, {.data = result.data()}, operands, result.size() / size_of(dtype));
  return result;
}

inline Bytes concatenated(const std::vector<Bytes>& inputs) {
  Bytes all;
  for (const Bytes& input : inputs) all.insert(all.end(), input.begin(), input.end());
  return all;
}

}  // namespace axon::testing
