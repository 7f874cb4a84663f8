// Selects the kernel for an operation on CUDA tensors. It is a pure function over a table, so that all ranks choose
// alike.
//
//   const Kernel kernel = select_kernel({.kind = OperationKind::kAllReduce, .dtype = …, .num_bytes = …}, layout);
//   if (kernel == Kernel::kNone) …   // through host memory
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/data_type.hpp"
#include "cuda/device_types.hpp"
#include "transport/message.hpp"

namespace axon::gpu_comm {

enum class Kernel : uint8_t {
  kNone,            // through host memory
  kLlOneShot,       // all_reduce
  kLlTwoShot,       // all_reduce
  kLl,              // all_gather
  kLl128,           // every operation; broadcast in one step
  kLl128Scattered,  // broadcast in two steps
  kZeroCopy,        // directly on the peers' tensors, or by LL128 as a fallback
};

const char* name_of(Kernel kernel) noexcept;

// What all ranks of an operation know.
struct KernelQuery {
  transport::OperationKind kind{};
  DataType dtype{};
  Reduction reduction = Reduction::kNone;
  int num_ranks = 0;
  // As for the host's algorithms (collectives/selector.hpp): the bytes of the tensor, or of all messages together. For
  // all_to_all this is this rank's amount only. Some ranks may choose LL128 while others try zero-copy and fall back.
  size_t num_bytes = 0;
  // For all_gather: whether all ranks have equally many elements. Other operations ignore it.
  bool has_equal_counts = true;
};

// `layout` is that of the slice part that all ranks use.
Kernel select_kernel(const KernelQuery& query, const cuda::TeamLayout& layout) noexcept;

// Prints the tuning table for diagnostics (operation, ranks, bytes, kernel), one line per row.
std::string describe_kernel_table();

}  // namespace axon::gpu_comm
