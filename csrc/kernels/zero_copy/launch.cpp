#include "kernels/zero_copy/launch.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "cuda/device.hpp"
#include "kernels/reduce_types.hpp"

namespace axon::kernels::zero_copy {

ZeroCopyHandshake handshake_of(cuda::DeviceOperation operation, DataType dtype, Reduction reduction,
                               int root) noexcept {
  return {.descriptor = {.operation = static_cast<uint64_t>(operation),
                         .dtype = static_cast<uint64_t>(dtype),
                         .reduction = static_cast<uint64_t>(reduction),
                         .root = static_cast<uint64_t>(root),
                         .num_bytes = 0},
          .reads = 0,
          .writes = 0,
          .is_aligned_16 = 1,
          .links = {}};
}

Result<int> count_blocks(int num_blocks, cuda::DeviceOperation operation, int num_ranks) {
  if (num_blocks < 0 || num_blocks > cuda::kMaxBlocks) {
    return Status(ErrorCode::kInvalidArgument, std::to_string(num_blocks) + " blocks were requested, the limit is " +
                                                   std::to_string(cuda::kMaxBlocks));
  }
  return num_blocks != 0 ? num_blocks : preferred_blocks(operation, Beside::kNothing, num_ranks);
}

// Hopper has 227 KB, an A100 163 KB, and other GPUs 99 KB. Variables of the kernels take some KB.
Result<size_t> most_shared_bytes() {
  constexpr size_t kMost = 192 << 10, kOfVariables = 8 << 10;
  Result<size_t> of_block = cuda::shared_bytes_per_block_of(cuda::current_device());
  if (!of_block.ok()) return of_block;
  return std::min(kMost, of_block.value() - kOfVariables);
}

Status load_kernels() {
  Result<size_t> shared_bytes = most_shared_bytes();
  if (!shared_bytes.ok()) return std::move(shared_bytes.status());
  for (const auto& [dtype, reduction] : all_reduction_types()) {
    AXON_TRY(cuda::load(reduce_kernel_for(dtype, reduction), shared_bytes.value()));
  }
  AXON_TRY(cuda::load(exchange_kernel_address()));
  return cuda::load(broadcast_kernel_address());
}

// The ranks of all_reduce send as much as they read. It gains up to 3 % from more blocks than fill the links; the other
// reductions do not (benchmarks/results/kernels_zero_copy_2xh200.jsonl). In an exchange between two ranks, half of 16
// blocks write as fast as the links allow, and half copy the rank's own message. A broadcast has no own message. To
// several peers, twice as many blocks write (kernels_zero_copy_4xh200.jsonl: all_gather of 1 GiB 2261 µs by 32 blocks,
// 2683 by 16). A broadcast uses 48 (also kernels_zero_copy_2xh200.jsonl) and reduce_scatter 24
// (kernels_zero_copy_4xh100.jsonl).
int preferred_blocks(cuda::DeviceOperation operation, Beside beside, int num_ranks) noexcept {
  const bool is_alone = beside == Beside::kNothing;
  const bool are_two = num_ranks == 2;
  switch (operation) {
    case cuda::DeviceOperation::kAllReduce:
      return is_alone ? 64 : 8;
    case cuda::DeviceOperation::kReduce:
      return is_alone ? 32 : 16;
    case cuda::DeviceOperation::kReduceScatter:
      return is_alone ? (are_two ? 32 : 24) : 16;
    case cuda::DeviceOperation::kBroadcast:
      return is_alone ? 48 : (are_two ? 8 : 16);
    default:
      return is_alone && !are_two ? 32 : 16;
  }
}

}  // namespace axon::kernels::zero_copy
