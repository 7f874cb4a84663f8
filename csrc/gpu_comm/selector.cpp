#include "gpu_comm/selector.hpp"

#include <algorithm>

#include "collectives/choices.hpp"
#include "ipc/slice_allocator.hpp"
#include "kernels/ll/collectives.hpp"
#include "kernels/ll128/collectives.hpp"
#include "kernels/load.hpp"
#include "kernels/team_layout.hpp"

namespace axon::gpu_comm {

namespace {

using collectives::kAnyBytes;
using collectives::kAnyRanks;
constexpr size_t kKiB = 1024;
constexpr size_t kMiB = 1024 * kKiB;

// The first matching row whose kernel supports the operation is used.
struct TuningRow {
  transport::OperationKind kind;
  int most_ranks;
  size_t most_bytes;
  Kernel kernel;
};

// Measured with 2 and 4 GPUs. LL: benchmarks/results/kernels_ll_4xh200.jsonl. LL128 and zero-copy:
// kernels_ll128_2xh200.jsonl, kernels_zero_copy_2xh200.jsonl, kernels_zero_copy_4xh200.jsonl and
// kernels_zero_copy_4xh100.jsonl.
constexpr TuningRow kTuning[] = {
    {transport::OperationKind::kAllReduce, 2, 512 * kKiB, Kernel::kLlOneShot},
    {transport::OperationKind::kAllReduce, 4, 128 * kKiB, Kernel::kLlOneShot},
    {transport::OperationKind::kAllReduce, 4, 256 * kKiB, Kernel::kLlTwoShot},
    {transport::OperationKind::kAllReduce, 8, 32 * kKiB, Kernel::kLlOneShot},
    {transport::OperationKind::kAllReduce, kAnyRanks, 8 * kKiB, Kernel::kLlOneShot},
    {transport::OperationKind::kAllReduce, kAnyRanks, 256 * kKiB, Kernel::kLlTwoShot},
    {transport::OperationKind::kAllReduce, 2, 4 * kMiB, Kernel::kLl128},
    {transport::OperationKind::kAllReduce, kAnyRanks, kMiB, Kernel::kLl128},
    {transport::OperationKind::kAllReduce, kAnyRanks, kAnyBytes, Kernel::kZeroCopy},
    {transport::OperationKind::kAllGather, kAnyRanks, 512 * kKiB, Kernel::kLl},
    {transport::OperationKind::kAllGather, kAnyRanks, 8 * kMiB, Kernel::kLl128},
    {transport::OperationKind::kAllGather, kAnyRanks, kAnyBytes, Kernel::kZeroCopy},
    {transport::OperationKind::kBroadcast, 2, 8 * kMiB, Kernel::kLl128},
    {transport::OperationKind::kBroadcast, 2, kAnyBytes, Kernel::kZeroCopy},
    {transport::OperationKind::kBroadcast, kAnyRanks, 512 * kKiB, Kernel::kLl128},
    {transport::OperationKind::kBroadcast, kAnyRanks, 128 * kMiB, Kernel::kLl128Scattered},
    {transport::OperationKind::kBroadcast, kAnyRanks, kAnyBytes, Kernel::kZeroCopy},
    {transport::OperationKind::kReduce, kAnyRanks, 16 * kMiB, Kernel::kLl128},
    {transport::OperationKind::kReduce, kAnyRanks, kAnyBytes, Kernel::kZeroCopy},
    {transport::OperationKind::kReduceScatter, 2, 4 * kMiB, Kernel::kLl128},
    {transport::OperationKind::kReduceScatter, kAnyRanks, kMiB, Kernel::kLl128},
    {transport::OperationKind::kReduceScatter, kAnyRanks, kAnyBytes, Kernel::kZeroCopy},
    {transport::OperationKind::kGather, kAnyRanks, 8 * kMiB, Kernel::kLl128},
    {transport::OperationKind::kGather, kAnyRanks, kAnyBytes, Kernel::kZeroCopy},
    {transport::OperationKind::kScatter, kAnyRanks, 8 * kMiB, Kernel::kLl128},
    {transport::OperationKind::kScatter, kAnyRanks, kAnyBytes, Kernel::kZeroCopy},
    {transport::OperationKind::kAllToAll, kAnyRanks, 8 * kMiB, Kernel::kLl128},
    {transport::OperationKind::kAllToAll, kAnyRanks, kAnyBytes, Kernel::kZeroCopy},
    {transport::OperationKind::kBarrier, kAnyRanks, kAnyBytes, Kernel::kLl128},
    {transport::OperationKind::kPointToPoint, kAnyRanks, 8 * kMiB, Kernel::kLl128},
    {transport::OperationKind::kPointToPoint, kAnyRanks, kAnyBytes, Kernel::kZeroCopy},
};

static_assert(std::ranges::all_of(kTuning, [](const TuningRow& row) {
  return collectives::has_kernel(row.kind, row.kernel) &&
         (row.most_ranks < collectives::kManyRanks || row.most_ranks == kAnyRanks);
}));

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
  const TuningRow* fitting = std::find_if(std::begin(kTuning), std::end(kTuning), [&](const TuningRow& row) {
    return row.kind == query.kind && query.num_ranks <= row.most_ranks && query.num_bytes <= row.most_bytes &&
           is_able(row.kernel, query, layout);
  });
  return fitting == std::end(kTuning) ? Kernel::kNone : fitting->kernel;
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
