// Translates run-time values into template arguments, once per launch, on the host.
#pragma once

#include "kernels/reduce.cuh"

namespace axon::kernels {

template <int kValue>
using Constant = std::integral_constant<int, kValue>;

// Calls visit(Constant<kGroup>) with the number of ranks to wait for at once.
template <typename Visitor>
const void* with_group(int num_ranks, Visitor visit) {
  if (num_ranks <= 2) return visit(Constant<2>{});
  if (num_ranks <= 4) return visit(Constant<4>{});
  return visit(Constant<8>{});
}

constexpr bool is_bitwise(Reduction reduction) {
  return reduction == Reduction::kBitAnd || reduction == Reduction::kBitOr || reduction == Reduction::kBitXor;
}

constexpr bool is_sum(Reduction reduction) {
  return reduction == Reduction::kSum || reduction == Reduction::kAverage;
}

constexpr bool is_order_or_product(Reduction reduction) {
  return reduction == Reduction::kProduct || reduction == Reduction::kMin || reduction == Reduction::kMax;
}

// Returns what `reduction` is on elements that are 0 or 1, or kNone if it is not defined.
constexpr Reduction of_truth_values(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
    case Reduction::kMax:
    case Reduction::kBitOr:
      return Reduction::kBitOr;
    case Reduction::kProduct:
    case Reduction::kMin:
    case Reduction::kBitAnd:
      return Reduction::kBitAnd;
    case Reduction::kBitXor:
      return Reduction::kBitXor;
    default:
      return Reduction::kNone;
  }
}

// Returns the reduction that the kernel receives.
constexpr Reduction reduction_of_kernel(DataType dtype, Reduction reduction) {
  return dtype == DataType::kBool ? of_truth_values(reduction) : reduction;
}

template <typename T, typename Visitor>
const void* with_integer(Reduction reduction, Visitor visit) {
  if (is_bitwise(reduction)) return visit(Bits{});
  return is_sum(reduction) || is_order_or_product(reduction) ? visit(AnyReduction<T>{}) : nullptr;
}

template <typename T, typename Visitor>
const void* with_float(Reduction reduction, Visitor visit) {
  if (is_sum(reduction)) return visit(Sums<T>{});
  const bool is_defined = is_order_or_product(reduction) || reduction == Reduction::kPremulSum;
  return is_defined ? visit(AnyReduction<T>{}) : nullptr;
}

// Complex numbers are added as pairs of real numbers.
template <typename T, typename Visitor>
const void* with_complex(Reduction reduction, Visitor visit) {
  return is_order_or_product(reduction) ? nullptr : with_float<T>(reduction, visit);
}

// Calls visit(Arithmetic); returns null if the type has no such reduction.
template <typename Visitor>
const void* with_arithmetic(DataType dtype, Reduction reduction, Visitor visit) {
  switch (dtype) {
    case DataType::kBool:
      return of_truth_values(reduction) == Reduction::kNone ? nullptr : visit(Bits{});
    case DataType::kInt8:
      return with_integer<int8_t>(reduction, visit);
    case DataType::kUint8:
      return with_integer<uint8_t>(reduction, visit);
    case DataType::kInt16:
      return with_integer<int16_t>(reduction, visit);
    case DataType::kUint16:
      return with_integer<uint16_t>(reduction, visit);
    case DataType::kInt32:
      return with_integer<int32_t>(reduction, visit);
    case DataType::kUint32:
      return with_integer<uint32_t>(reduction, visit);
    case DataType::kInt64:
      return with_integer<int64_t>(reduction, visit);
    case DataType::kUint64:
      return with_integer<uint64_t>(reduction, visit);
    case DataType::kFloat16:
      return with_float<__half>(reduction, visit);
    case DataType::kBFloat16:
      return with_float<__nv_bfloat16>(reduction, visit);
    case DataType::kFloat32:
      return with_float<float>(reduction, visit);
    case DataType::kFloat64:
      return with_float<double>(reduction, visit);
    case DataType::kComplex64:
      return with_complex<float>(reduction, visit);
    case DataType::kComplex128:
      return with_complex<double>(reduction, visit);
    default:
      return nullptr;
  }
}

}  // namespace axon::kernels
