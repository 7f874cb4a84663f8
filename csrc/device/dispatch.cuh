// From run-time values to template arguments, once a launch, on the host.
#pragma once

#include "device/packet_kernel.cuh"
#include "device/reduce.cuh"

namespace axon::device {

template <int kValue>
using Constant = std::integral_constant<int, kValue>;

// visit(Constant<kGroup>) with the ranks to wait for at once.
template <typename Visitor>
const void* with_group(int num_ranks, Visitor visit) {
  if (num_ranks <= 2) return visit(Constant<2>{});
  if (num_ranks <= 4) return visit(Constant<4>{});
  return visit(Constant<8>{});
}

// visit(Op), or null where T has no such reduction.
template <typename T, typename Visitor>
const void* with_reduction(Reduction reduction, Visitor visit) {
  switch (reduction) {
    case Reduction::kSum:
      return visit(Sum{});
    case Reduction::kProduct:
      return visit(Product{});
    case Reduction::kMin:
      return visit(Min{});
    case Reduction::kMax:
      return visit(Max{});
    case Reduction::kAverage:
      if constexpr (!std::is_integral_v<T>) return visit(Average{});
      return nullptr;
    default:
      return nullptr;
  }
}

// The kernel of a reducing algorithm for one element type, or null.
template <template <typename, typename, int> typename Algorithm, typename T>
const void* kernel_of(Reduction reduction, int num_ranks) {
  return with_reduction<T>(reduction, [num_ranks](auto op) {
    return with_group(num_ranks, [](auto group) {
      return reinterpret_cast<const void*>(&packet_kernel<Algorithm<T, decltype(op), decltype(group)::value>>);
    });
  });
}

template <template <typename, typename, int> typename Algorithm>
const void* reducing_kernel(DataType dtype, Reduction reduction, int num_ranks) {
  switch (dtype) {
    case DataType::kFloat32:
      return kernel_of<Algorithm, float>(reduction, num_ranks);
    case DataType::kFloat16:
      return kernel_of<Algorithm, __half>(reduction, num_ranks);
    case DataType::kBFloat16:
      return kernel_of<Algorithm, __nv_bfloat16>(reduction, num_ranks);
    case DataType::kInt32:
      return kernel_of<Algorithm, int32_t>(reduction, num_ranks);
    case DataType::kInt64:
      return kernel_of<Algorithm, int64_t>(reduction, num_ranks);
    default:
      return nullptr;
  }
}

}  // namespace axon::device
