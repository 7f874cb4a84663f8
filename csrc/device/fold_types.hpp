// Which reductions exist, for those who list or look for kernels.
#pragma once

#include <vector>

#include "base/data_type.hpp"

namespace axon::device {

struct FoldType {
  DataType dtype;
  Reduction reduction;
};

// All that has_kernel() knows.
std::vector<FoldType> all_folds();

}  // namespace axon::device
