#include "collectives/tuning.hpp"

#include <algorithm>

#include "collectives/choices.hpp"

namespace axon::collectives {

using transport::OperationKind;

static constexpr size_t kKiB = 1024;
static constexpr size_t kMiB = 1024 * kKiB;

// The first row that fits is selected. A kernel that cannot serve an operation leaves it to a later row.
static constexpr TuningRow kTuning[] = {
    // Algorithms, for CPU tensors.
    {OperationKind::kBroadcast, {.most_ranks = 2}, "binomial"},
    // 16 MiB, 4 and 8 ranks on 2 busy cores: 5.0, 14 ms; scatter_ring 61, 232 (broadcast_*_2_core_busy.jsonl).
    {OperationKind::kBroadcast, {.hosts = Hosts::kOne}, "binomial"},
    {OperationKind::kBroadcast, {.most_bytes = 64 * kKiB}, "binomial"},
    {OperationKind::kBroadcast, {.hosts = Hosts::kShared}, "hierarchical"},
    // 256 KiB between 4 hosts at 1 Gbit/s: 2.2 ms; binomial 4.4, scatter_ring 3.2 (ADR 0071).
    {OperationKind::kBroadcast, {.most_ranks = 8}, "chain"},
    {OperationKind::kBroadcast, {}, "scatter_ring"},
    {OperationKind::kAllReduce, {.most_ranks = 2, .most_bytes = 64 * kKiB}, "one_shot"},
    {OperationKind::kAllReduce, {.most_ranks = 4, .most_bytes = 8 * kKiB}, "one_shot"},
    {OperationKind::kAllReduce, {.most_ranks = 8, .most_bytes = 2 * kKiB}, "one_shot"},
    {OperationKind::kAllReduce, {.most_bytes = 16 * kKiB}, "recursive_doubling"},
    {OperationKind::kAllReduce, {.hosts = Hosts::kShared}, "hierarchical"},
    {OperationKind::kAllReduce, {.most_ranks = 32}, "two_shot"},
    {OperationKind::kAllReduce, {.hosts = Hosts::kOne}, "ring"},
    // Between many hosts, the 2·(n−1) steps of a ring take longer than the bytes (ADR 0067).
    {OperationKind::kAllReduce, {.most_bytes = 256 * kKiB}, "recursive_doubling"},
    {OperationKind::kAllReduce, {}, "ring"},
    {OperationKind::kReduce, {.most_bytes = 32 * kKiB}, "binomial"},
    {OperationKind::kReduce, {.hosts = Hosts::kShared}, "hierarchical"},
    {OperationKind::kReduce, {}, "two_shot"},
    {OperationKind::kAllGather, {.most_ranks = 8, .most_bytes = 64 * kKiB}, "direct"},
    {OperationKind::kAllGather, {.most_bytes = 64 * kKiB}, "bruck"},
    {OperationKind::kAllGather, {.hosts = Hosts::kShared}, "hierarchical"},
    {OperationKind::kAllGather, {.most_ranks = 32}, "direct"},
    {OperationKind::kAllGather, {}, "ring"},
    {OperationKind::kGather, {}, "direct"},
    {OperationKind::kScatter, {}, "direct"},
    {OperationKind::kReduceScatter, {.most_bytes = kMiB}, "direct"},
    {OperationKind::kReduceScatter, {.hosts = Hosts::kShared}, "hierarchical"},
    {OperationKind::kReduceScatter, {.most_ranks = 32}, "direct"},
    {OperationKind::kReduceScatter, {}, "ring"},
    {OperationKind::kAllToAll, {}, "pairwise"},
    {OperationKind::kBarrier, {}, "dissemination"},

    // Kernels, for CUDA tensors; measured with 2 and 4 GPUs. LL: benchmarks/results/kernels_ll_4xh200.jsonl. LL128 and
    // zero-copy: kernels_ll128_2xh200.jsonl, kernels_zero_copy_2xh200.jsonl, kernels_zero_copy_4xh200.jsonl and
    // kernels_zero_copy_4xh100.jsonl.
    {OperationKind::kBroadcast, {.most_ranks = 2, .most_bytes = 8 * kMiB}, "ll128"},
    {OperationKind::kBroadcast, {.most_ranks = 2}, "zero_copy"},
    {OperationKind::kBroadcast, {.most_bytes = 512 * kKiB}, "ll128"},
    {OperationKind::kBroadcast, {.most_bytes = 128 * kMiB}, "ll128_scattered"},
    {OperationKind::kBroadcast, {}, "zero_copy"},
    {OperationKind::kAllReduce, {.most_ranks = 2, .most_bytes = 512 * kKiB}, "ll_one_shot"},
    {OperationKind::kAllReduce, {.most_ranks = 4, .most_bytes = 128 * kKiB}, "ll_one_shot"},
    {OperationKind::kAllReduce, {.most_ranks = 4, .most_bytes = 256 * kKiB}, "ll_two_shot"},
    {OperationKind::kAllReduce, {.most_ranks = 8, .most_bytes = 32 * kKiB}, "ll_one_shot"},
    {OperationKind::kAllReduce, {.most_bytes = 8 * kKiB}, "ll_one_shot"},
    {OperationKind::kAllReduce, {.most_bytes = 256 * kKiB}, "ll_two_shot"},
    {OperationKind::kAllReduce, {.most_ranks = 2, .most_bytes = 4 * kMiB}, "ll128"},
    {OperationKind::kAllReduce, {.most_bytes = kMiB}, "ll128"},
    {OperationKind::kAllReduce, {}, "zero_copy"},
    {OperationKind::kReduce, {.most_bytes = 16 * kMiB}, "ll128"},
    {OperationKind::kReduce, {}, "zero_copy"},
    {OperationKind::kAllGather, {.most_bytes = 512 * kKiB}, "ll"},
    {OperationKind::kAllGather, {.most_bytes = 8 * kMiB}, "ll128"},
    {OperationKind::kAllGather, {}, "zero_copy"},
    {OperationKind::kGather, {.most_bytes = 8 * kMiB}, "ll128"},
    {OperationKind::kGather, {}, "zero_copy"},
    {OperationKind::kScatter, {.most_bytes = 8 * kMiB}, "ll128"},
    {OperationKind::kScatter, {}, "zero_copy"},
    {OperationKind::kReduceScatter, {.most_ranks = 2, .most_bytes = 4 * kMiB}, "ll128"},
    {OperationKind::kReduceScatter, {.most_bytes = kMiB}, "ll128"},
    {OperationKind::kReduceScatter, {}, "zero_copy"},
    {OperationKind::kAllToAll, {.most_bytes = 8 * kMiB}, "ll128"},
    {OperationKind::kAllToAll, {}, "zero_copy"},
    {OperationKind::kBarrier, {}, "ll128"},
    {OperationKind::kPointToPoint, {.most_bytes = 8 * kMiB}, "ll128"},
    {OperationKind::kPointToPoint, {}, "zero_copy"},
};

static constexpr bool always_has_an_algorithm(OperationKind kind) noexcept {
  constexpr GroupShape kLargest{.num_ranks = kAnyRanks, .num_hosts = kAnyRanks};
  return std::ranges::any_of(kTuning, [&](const TuningRow& row) {
    return row.kind == kind && row.kernel == Kernel::kNone && row.limits.include(kLargest, kAnyBytes);
  });
}
static_assert(std::ranges::all_of(kOperations, [](OperationKind kind) {
  return kind == OperationKind::kPointToPoint || always_has_an_algorithm(kind);
}));

std::span<const TuningRow> tuning_table() noexcept {
  return kTuning;
}

}  // namespace axon::collectives
