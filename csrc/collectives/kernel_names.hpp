// The kernels for CUDA tensors, by name. gpu_comm/selector.hpp selects one of them; builds without CUDA have only the
// names, so that AXON_ALGO means the same in all of them.
#pragma once

#include <cstdint>
#include <string_view>

#include "transport/message.hpp"

namespace axon::collectives {

enum class Kernel : uint8_t {
  kNone,            // through host memory
  kLlOneShot,       // all_reduce
  kLlTwoShot,       // all_reduce
  kLl,              // all_gather
  kLl128,           // every operation; broadcast in one step
  kLl128Scattered,  // broadcast in two steps
  kZeroCopy,        // directly on the peers' tensors, or by LL128 as a fallback
};

constexpr const char* name_of(Kernel kernel) noexcept {
  constexpr const char* kNames[] = {"none",  "ll_one_shot",     "ll_two_shot", "ll",
                                    "ll128", "ll128_scattered", "zero_copy"};
  return kNames[static_cast<size_t>(kernel)];
}

struct KernelRow {
  transport::OperationKind kind;
  Kernel kernel;
};

inline constexpr KernelRow kKernels[] = {
    {transport::OperationKind::kBroadcast, Kernel::kLl128},
    {transport::OperationKind::kBroadcast, Kernel::kLl128Scattered},
    {transport::OperationKind::kBroadcast, Kernel::kZeroCopy},
    {transport::OperationKind::kAllReduce, Kernel::kLlOneShot},
    {transport::OperationKind::kAllReduce, Kernel::kLlTwoShot},
    {transport::OperationKind::kAllReduce, Kernel::kLl128},
    {transport::OperationKind::kAllReduce, Kernel::kZeroCopy},
    {transport::OperationKind::kReduce, Kernel::kLl128},
    {transport::OperationKind::kReduce, Kernel::kZeroCopy},
    {transport::OperationKind::kAllGather, Kernel::kLl},
    {transport::OperationKind::kAllGather, Kernel::kLl128},
    {transport::OperationKind::kAllGather, Kernel::kZeroCopy},
    {transport::OperationKind::kGather, Kernel::kLl128},
    {transport::OperationKind::kGather, Kernel::kZeroCopy},
    {transport::OperationKind::kScatter, Kernel::kLl128},
    {transport::OperationKind::kScatter, Kernel::kZeroCopy},
    {transport::OperationKind::kReduceScatter, Kernel::kLl128},
    {transport::OperationKind::kReduceScatter, Kernel::kZeroCopy},
    {transport::OperationKind::kAllToAll, Kernel::kLl128},
    {transport::OperationKind::kAllToAll, Kernel::kZeroCopy},
    {transport::OperationKind::kBarrier, Kernel::kLl128},
    {transport::OperationKind::kPointToPoint, Kernel::kLl128},
    {transport::OperationKind::kPointToPoint, Kernel::kZeroCopy},
};

// Returns kNone if the operation has no kernel of this name.
constexpr Kernel find_kernel(transport::OperationKind kind, std::string_view name) noexcept {
  for (const KernelRow& row : kKernels) {
    if (row.kind == kind && name_of(row.kernel) == name) return row.kernel;
  }
  return Kernel::kNone;
}

}  // namespace axon::collectives
