#include "gpu_comm/selector.hpp"

#include "collectives/tuning.hpp"
#include "ipc/slice_allocator.hpp"
#include "kernels/ll/collectives.hpp"
#include "kernels/ll128/collectives.hpp"
#include "kernels/load.hpp"
#include "kernels/team_layout.hpp"

namespace axon::gpu_comm {

namespace {

constexpr bool reduces(transport::OperationKind kind) noexcept {
  return kind == transport::OperationKind::kAllReduce || kind == transport::OperationKind::kReduce ||
         kind == transport::OperationKind::kReduceScatter;
}

bool is_able(Kernel kernel, const KernelQuery& query, const cuda::TeamLayout& layout) noexcept {
  if (reduces(query.kind) && !kernels::has_kernel(query.dtype, query.reduction)) return false;
  const bool has_data = query.num_bytes != 0;  // all kernels but LL128 need data
  switch (kernel) {
    case Kernel::kLlOneShot:
      return has_data &&
             kernels::ll::one_shot_region_packets(query.num_ranks, query.num_bytes) <= layout.region_packets;
    case Kernel::kLlTwoShot:
      return has_data &&
             kernels::ll::two_shot_region_packets(query.num_ranks, query.num_bytes) <= layout.region_packets;
    case Kernel::kLl: {
      const size_t input_bytes = query.num_bytes / static_cast<size_t>(query.num_ranks);
      return has_data && query.has_equal_counts &&
             kernels::ll::one_shot_region_packets(query.num_ranks, input_bytes) <= layout.region_packets;
    }
    case Kernel::kLl128Scattered:
      return has_data && query.num_ranks > 2;
    case Kernel::kZeroCopy:
      return has_data;
    default:
      return true;
  }
}

}  // namespace

Kernel select_kernel(const KernelQuery& query, const cuda::TeamLayout& layout, Kernel wanted) noexcept {
  if (wanted != Kernel::kNone && is_able(wanted, query, layout)) return wanted;
  const collectives::GroupShape group{.num_ranks = query.num_ranks, .num_hosts = 1};
  const collectives::TuningRow* row =
      collectives::find_row(query.kind, group, query.num_bytes, [&](const collectives::TuningRow& each) {
        return each.kernel != Kernel::kNone && is_able(each.kernel, query, layout);
      });
  return row == nullptr ? Kernel::kNone : row->kernel;
}

KernelQuery typical_query(transport::OperationKind kind, int num_ranks, size_t num_bytes) noexcept {
  return {.kind = kind,
          .dtype = DataType::kFloat32,
          .reduction = reduces(kind) ? Reduction::kSum : Reduction::kNone,
          .num_ranks = num_ranks,
          .num_bytes = num_bytes};
}

Kernel typical_kernel(transport::OperationKind kind, int num_ranks, size_t num_bytes, Kernel wanted) {
  const Result<cuda::TeamLayout> layout =
      kernels::lay_out(num_ranks, ipc::SliceAllocator::kLargeSlice - ipc::SliceAllocator::kSmallSlice);
  if (!layout.ok()) return Kernel::kNone;
  return select_kernel(typical_query(kind, num_ranks, num_bytes), layout.value(), wanted);
}

}  // namespace axon::gpu_comm
