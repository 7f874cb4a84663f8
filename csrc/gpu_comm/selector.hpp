// Selects the kernel for an operation on CUDA tensors. It is a pure function over the tuning table, so that all ranks
// choose alike.
//
//   const Kernel kernel = select_kernel({.kind = OperationKind::kAllReduce, .dtype = …, .num_bytes = …}, layout);
//   if (kernel == Kernel::kNone) …   // through host memory
#pragma once

#include <cstddef>

#include "base/data_type.hpp"
#include "collectives/kernel_names.hpp"
#include "cuda/device_types.hpp"
#include "transport/message.hpp"

namespace axon::gpu_comm {

using collectives::Kernel;

// What all ranks of an operation know.
struct KernelQuery {
  transport::OperationKind kind{};
  DataType dtype{};
  Reduction reduction = Reduction::kNone;
  int num_ranks = 0;  // of the team: those of one host
  // As for the host's algorithms (collectives/selector.hpp): the bytes of the tensor, or of all messages together. For
  // all_to_all this is this rank's amount only. Some ranks may choose LL128 while others try zero-copy and fall back.
  size_t num_bytes = 0;
  // For all_gather: whether all ranks have equally many elements. Other operations ignore it.
  bool has_equal_counts = true;
};

// `layout` is that of the slice part that all ranks use. `wanted`, if not kNone, takes precedence over the table if it
// can serve the operation; it must be the same on all ranks.
Kernel select_kernel(const KernelQuery& query, const cuda::TeamLayout& layout, Kernel wanted = Kernel::kNone) noexcept;

// Returns the kernel for float32 tensors, summed where the operation reduces, in a large slice. For diagnostics; kNone
// if kernels do not serve groups of this size.
Kernel typical_kernel(transport::OperationKind kind, int num_ranks, size_t num_bytes, Kernel wanted = Kernel::kNone);

// Returns the query for such tensors.
KernelQuery typical_query(transport::OperationKind kind, int num_ranks, size_t num_bytes) noexcept;

}  // namespace axon::gpu_comm
