#include "gpu_comm/selector.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "kernels/ll/collectives.hpp"
#include "kernels/ll128/collectives.hpp"
#include "kernels/load.hpp"

namespace axon::gpu_comm {

namespace {

constexpr int kAnyRanks = std::numeric_limits<int>::max();
constexpr size_t kAnyBytes = std::numeric_limits<size_t>::max();
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

constexpr bool reduces(transport::OperationKind kind) noexcept {
  return kind == transport::OperationKind::kAllReduce || kind == transport::OperationKind::kReduce ||
         kind == transport::OperationKind::kReduceScatter;
}

bool is_able(Kernel kernel, const KernelQuery& query, const cuda::TeamLayout& layout) noexcept {
  if (reduces(query.kind) && !kernels::has_kernel(query.dtype, query.reduction)) return false;
  const bool has_data = query.num_bytes != 0;  // LL kernels need data
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
    default:
      return true;
  }
}

std::string padded(std::string text, size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

}  // namespace

const char* name_of(Kernel kernel) noexcept {
  static constexpr std::array kNames{"none",  "ll_one_shot",     "ll_two_shot", "ll",
                                     "ll128", "ll128_scattered", "zero_copy"};
  return kNames[static_cast<size_t>(kernel)];
}

Kernel select_kernel(const KernelQuery& query, const cuda::TeamLayout& layout) noexcept {
  const TuningRow* fitting = std::find_if(std::begin(kTuning), std::end(kTuning), [&](const TuningRow& row) {
    return row.kind == query.kind && query.num_ranks <= row.most_ranks && query.num_bytes <= row.most_bytes &&
           is_able(row.kernel, query, layout);
  });
  return fitting == std::end(kTuning) ? Kernel::kNone : fitting->kernel;
}

std::string describe_kernel_table() {
  constexpr size_t kWidth = 18;
  std::string table =
      padded("operation", kWidth) + padded("ranks up to", kWidth) + padded("bytes up to", kWidth) + "kernel\n";
  for (const TuningRow& row : kTuning) {
    table += padded(name_of(row.kind), kWidth);
    table += padded(row.most_ranks == kAnyRanks ? "any" : std::to_string(row.most_ranks), kWidth);
    table += padded(row.most_bytes == kAnyBytes ? "any" : std::to_string(row.most_bytes), kWidth);
    table += std::string(name_of(row.kernel)) + "\n";
  }
  return table;
}

}  // namespace axon::gpu_comm
