// The list of existing reductions, for code that lists or selects kernels. Plain values.
#pragma once

#include <vector>

#include "base/data_type.hpp"
#include "base/status.hpp"

namespace axon::kernels {

struct ReductionType {
  DataType dtype;
  Reduction reduction;
};

// Returns all combinations for which has_kernel() is true.
std::vector<ReductionType> all_reduction_types();

Status no_kernel(DataType dtype, Reduction reduction);

}  // namespace axon::kernels
