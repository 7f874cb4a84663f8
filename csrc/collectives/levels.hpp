// The reductions of a hierarchical algorithm's two levels: within the hosts, then between them.
//
// By default, each level rounds its sums of float16 and bfloat16 once. An exact algorithm widens the operands first, so
// that both levels add in float32 and the result is rounded once; this doubles the bytes that travel.
#pragma once

#include "collectives/collective.hpp"
#include "collectives/local.hpp"

namespace axon::collectives {

struct Levels {
  DataType dtype{};
  Reduction within_hosts{};
  Reduction between_hosts{};
};

inline bool is_half(DataType dtype) noexcept {
  return partial_type(dtype) != dtype;
}

// The levels over operands in their stored type. Averages are divided last. But those of half types are divided first,
// since a sum within a host could exceed the range of float16.
inline Levels levels_of(const CollectiveArguments& arguments) noexcept {
  const bool divides_first = is_half(arguments.dtype);
  switch (arguments.reduction) {
    case Reduction::kAverage:
      return {arguments.dtype, divides_first ? Reduction::kAverage : Reduction::kSum,
              divides_first ? Reduction::kSum : Reduction::kAverage};
    case Reduction::kPremulSum:
      return {arguments.dtype, Reduction::kPremulSum, Reduction::kSum};
    default:
      return {arguments.dtype, arguments.reduction, arguments.reduction};
  }
}

// The levels over widened operands, which begin_partial has multiplied and finish_partial will divide.
inline Levels widened_levels_of(const CollectiveArguments& arguments) noexcept {
  const bool is_sum = arguments.reduction == Reduction::kAverage || arguments.reduction == Reduction::kPremulSum;
  const Reduction reduction = is_sum ? Reduction::kSum : arguments.reduction;
  return {partial_type(arguments.dtype), reduction, reduction};
}

}  // namespace axon::collectives
