// Says which reductions the kernels support, and loads all kernels before the first launch. Stateless.
#pragma once

#include "base/data_type.hpp"
#include "base/status.hpp"

namespace axon::kernels {

// Returns whether the LL and LL128 kernels of all_reduce and reduce_scatter support this type and reduction. They
// support what the host supports.
bool has_kernel(DataType dtype, Reduction reduction) noexcept;

// Loads every kernel that a team of `num_ranks` ranks may launch onto the current device, whatever its protocol.
Status load_kernels(int num_ranks);

}  // namespace axon::kernels
