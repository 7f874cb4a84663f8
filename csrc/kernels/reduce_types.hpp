// Which reductions exist, for those who list or look for kernels.
#pragma once

#include <vector>

#include "base/data_type.hpp"
#include "base/status.hpp"

namespace axon::kernels {

struct ReductionType {
  DataType dtype;
  Reduction reduction;
};

// All that has_kernel() knows.
std::vector<ReductionType> all_reduction_types();

Status no_kernel(DataType dtype, Reduction reduction);

}  // namespace axon::kernels
