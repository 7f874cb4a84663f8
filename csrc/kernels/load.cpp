#include "kernels/load.hpp"

#include <string>
#include <utility>
#include <vector>

#include "cuda/device.hpp"
#include "cuda/launch.hpp"
#include "kernels/copy_blocks.hpp"
#include "kernels/digest.hpp"
#include "kernels/host_slots.hpp"
#include "kernels/ll/collectives.hpp"
#include "kernels/ll128/launch.hpp"
#include "kernels/prepared.hpp"
#include "kernels/reduce_slots.hpp"
#include "kernels/reduce_types.hpp"
#include "kernels/zero_copy/launch.hpp"

namespace axon::kernels {

std::vector<ReductionType> all_reduction_types() {
  std::vector<ReductionType> types;
  for (int dtype = 0; dtype <= static_cast<int>(DataType::kComplex128); ++dtype) {
    for (int reduction = 0; reduction <= static_cast<int>(Reduction::kPremulSum); ++reduction) {
      const ReductionType type{static_cast<DataType>(dtype), static_cast<Reduction>(reduction)};
      if (has_kernel(type.dtype, type.reduction)) types.push_back(type);
    }
  }
  return types;
}

Status no_kernel(DataType dtype, Reduction reduction) {
  return Status(ErrorCode::kInvalidArgument,
                std::string("there is no kernel for ") + name_of(dtype) + " with " + name_of(reduction));
}

bool has_kernel(DataType dtype, Reduction reduction) noexcept {
  return ll128::reduce_kernels_for(dtype, reduction).for_short != nullptr;
}

// Blocks of one kernel wait for each other, so all must fit onto the GPU.
static Status require_multiprocessors() {
  Result<int> count = cuda::num_multiprocessors_of(cuda::current_device());
  if (!count.ok()) return std::move(count.status());
  if (count.value() >= static_cast<int>(ll128::kMostBlocks)) return Status();
  return {ErrorCode::kInvalidArgument, "the GPU has " + std::to_string(count.value()) +
                                           " multiprocessors, and kernels between GPUs need " +
                                           std::to_string(ll128::kMostBlocks)};
}

Status load_kernels(int num_ranks) {
  AXON_TRY(require_multiprocessors());
  std::vector<ll128::ReduceKernels> kernels{ll128::relay_kernels()};
  for (const auto& [dtype, reduction] : all_reduction_types()) {
    kernels.push_back(ll128::reduce_kernels_for(dtype, reduction));
  }
  for (const ll128::ReduceKernels& pair : kernels) {
    AXON_TRY(cuda::load(pair.for_short));
    AXON_TRY(cuda::load(pair.for_long));
  }
  AXON_TRY(cuda::load(ll128::exchange_kernel_address()));
  AXON_TRY(cuda::load(ll128::message_kernel_address()));
  AXON_TRY(zero_copy::load_kernels());
  AXON_TRY(load_reduce_slots_kernels());
  AXON_TRY(load_slot_kernels());
  AXON_TRY(load_digest());
  AXON_TRY(load_transfer_kernels());
  return ll::load_kernels(num_ranks);
}

}  // namespace axon::kernels
