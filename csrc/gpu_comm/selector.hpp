// Which kernel an operation on CUDA tensors takes: a pure function over a table, so that all ranks choose alike.
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
  kNone,            // through the host
  kLlOneShot,       // all_reduce
  kLlTwoShot,       // all_reduce
  kLl,              // all_gather
  kLl128,           // everything; a broadcast in one flight
  kLl128Scattered,  // broadcast in two flights
  kZeroCopy,        // on the peers' tensors themselves, or by LL128 where they cannot be reached
};

const char* name_of(Kernel kernel) noexcept;

// What all ranks know alike.
struct KernelQuery {
  transport::OperationKind kind{};
  DataType dtype{};
  Reduction reduction = Reduction::kNone;
  int num_ranks = 0;
  // As for the host's algorithms (collectives/selector.hpp): the tensor's, or that of all blocks together. Of an
  // all_to_all this rank's alone: some may choose LL128 while others try zero-copy, and fall back.
  size_t num_bytes = 0;
  // All_gather: every rank has as much. Others do not look at it.
  bool has_equal_counts = true;
};

// `layout` of the block that all ranks use.
Kernel select_kernel(const KernelQuery& query, const cuda::TeamLayout& layout) noexcept;

// The tuning table for people: operation, ranks, bytes, kernel, a line a row.
std::string describe_kernel_table();

}  // namespace axon::gpu_comm
