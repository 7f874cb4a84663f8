#include "device/direct_launch.hpp"

#include <string>

#include "device/fold_types.hpp"

namespace axon::device {

DirectMeeting meeting_of(DeviceOperation operation, DataType dtype, Reduction reduction, int root) noexcept {
  return {.descriptor = {.operation = static_cast<uint64_t>(operation),
                         .dtype = static_cast<uint64_t>(dtype),
                         .reduction = static_cast<uint64_t>(reduction),
                         .root = static_cast<uint64_t>(root),
                         .num_bytes = 0},
          .reads = 0,
          .writes = 0,
          .is_even = 1,
          .edges = {}};
}

Result<int> count_blocks(int num_blocks, int preferred) {
  if (num_blocks < 0 || num_blocks > kMaxBlocks) {
    return Status(ErrorCode::kInvalidArgument,
                  std::to_string(num_blocks) + " blocks; there are up to " + std::to_string(kMaxBlocks));
  }
  return num_blocks != 0 ? num_blocks : preferred;
}

Status load_direct_kernels() {
  for (const auto& [dtype, reduction] : all_folds()) {
    AXON_TRY(load(direct_fold_kernel(dtype, reduction), kMostDirectSharedBytes));
  }
  return load(direct_exchange_kernel());
}

}  // namespace axon::device
