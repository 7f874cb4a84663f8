// The local parts of a collective, which need no messages.
#pragma once

#include <cstring>

#include "collectives/arithmetic/arithmetic.hpp"
#include "collectives/collective.hpp"

namespace axon::collectives {

// Copies a rank's own shard. Does nothing if the output is the input.
inline void copy_shard(Buffer output, ConstBuffer input) noexcept {
  if (output.data != input.data && input.num_bytes != 0) std::memcpy(output.data, input.data, input.num_bytes);
}

// An average is one over the whole group, also in a view of some of its ranks: they reduce what others have added up.
inline ReductionPlan reduction_plan(const messaging::View& view, const CollectiveArguments& arguments) noexcept {
  return {.dtype = arguments.dtype,
          .reduction = arguments.reduction,
          .num_ranks = view.exchange().size(),
          .premul_factor = arguments.premul_factor};
}

// Returns how many bytes partial results take for `num_bytes` of the tensor while they travel.
inline size_t partial_bytes(DataType dtype, size_t num_bytes) noexcept {
  return num_bytes / size_of(dtype) * size_of(partial_type(dtype));
}

}  // namespace axon::collectives
