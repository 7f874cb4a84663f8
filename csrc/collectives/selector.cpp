#include "collectives/selector.hpp"

#include <algorithm>

#include "collectives/algorithms.hpp"
#include "collectives/choices.hpp"

namespace axon::collectives {

static constexpr AlgorithmRow kAlgorithms[] = {
    {transport::OperationKind::kBroadcast, "binomial", 1, broadcast::binomial},
    {transport::OperationKind::kBroadcast, "scatter_ring", 2, broadcast::scatter_ring},
    {transport::OperationKind::kAllReduce, "one_shot", 1, all_reduce::one_shot},
    {transport::OperationKind::kAllReduce, "recursive_doubling", 2, all_reduce::recursive_doubling},
    {transport::OperationKind::kAllReduce, "two_shot", 3, all_reduce::two_shot},
    {transport::OperationKind::kAllReduce, "ring", 4, all_reduce::ring},
    {transport::OperationKind::kReduce, "binomial", 1, reduce::binomial},
    {transport::OperationKind::kReduce, "two_shot", 2, reduce::two_shot},
    {transport::OperationKind::kAllGather, "direct", 1, all_gather::direct},
    {transport::OperationKind::kAllGather, "bruck", 2, all_gather::bruck},
    {transport::OperationKind::kAllGather, "ring", 3, all_gather::ring},
    {transport::OperationKind::kGather, "direct", 1, gather::direct},
    {transport::OperationKind::kScatter, "direct", 1, scatter::direct},
    {transport::OperationKind::kReduceScatter, "direct", 1, reduce_scatter::direct},
    {transport::OperationKind::kReduceScatter, "ring", 2, reduce_scatter::ring},
    {transport::OperationKind::kAllToAll, "pairwise", 1, all_to_all::pairwise},
    {transport::OperationKind::kBarrier, "dissemination", 1, barrier::dissemination},
};

enum class Hosts : uint8_t { kOne, kAny };

// The first row that fits is selected; each operation ends with a row that always fits.
struct TuningRow {
  transport::OperationKind kind;
  int most_ranks;
  size_t most_bytes;
  std::string_view name;
  Hosts hosts = Hosts::kAny;

  bool fits(GroupShape group, size_t num_bytes) const noexcept {
    return group.num_ranks <= most_ranks && num_bytes <= most_bytes && (hosts == Hosts::kAny || group.on_one_host);
  }
};

static constexpr size_t kKiB = 1024;

static constexpr TuningRow kTuning[] = {
    {transport::OperationKind::kBroadcast, 2, kAnyBytes, "binomial"},
    // 16 MiB, 4 and 8 ranks on 2 busy cores: 5.0, 14 ms; scatter_ring 61, 232 (broadcast_*_2_core_busy.jsonl).
    {transport::OperationKind::kBroadcast, kAnyRanks, kAnyBytes, "binomial", Hosts::kOne},
    {transport::OperationKind::kBroadcast, kAnyRanks, 64 * kKiB, "binomial"},
    {transport::OperationKind::kBroadcast, kAnyRanks, kAnyBytes, "scatter_ring"},
    {transport::OperationKind::kAllReduce, 2, 64 * kKiB, "one_shot"},
    {transport::OperationKind::kAllReduce, 4, 8 * kKiB, "one_shot"},
    {transport::OperationKind::kAllReduce, 8, 2 * kKiB, "one_shot"},
    {transport::OperationKind::kAllReduce, kAnyRanks, 16 * kKiB, "recursive_doubling"},
    {transport::OperationKind::kAllReduce, 32, kAnyBytes, "two_shot"},
    {transport::OperationKind::kAllReduce, kAnyRanks, kAnyBytes, "ring"},
    {transport::OperationKind::kReduce, kAnyRanks, 32 * kKiB, "binomial"},
    {transport::OperationKind::kReduce, kAnyRanks, kAnyBytes, "two_shot"},
    {transport::OperationKind::kAllGather, 8, kAnyBytes, "direct"},
    {transport::OperationKind::kAllGather, kAnyRanks, 64 * kKiB, "bruck"},
    {transport::OperationKind::kAllGather, 32, kAnyBytes, "direct"},
    {transport::OperationKind::kAllGather, kAnyRanks, kAnyBytes, "ring"},
    {transport::OperationKind::kGather, kAnyRanks, kAnyBytes, "direct"},
    {transport::OperationKind::kScatter, kAnyRanks, kAnyBytes, "direct"},
    {transport::OperationKind::kReduceScatter, 32, kAnyBytes, "direct"},
    {transport::OperationKind::kReduceScatter, kAnyRanks, 1024 * kKiB, "direct"},
    {transport::OperationKind::kReduceScatter, kAnyRanks, kAnyBytes, "ring"},
    {transport::OperationKind::kAllToAll, kAnyRanks, kAnyBytes, "pairwise"},
    {transport::OperationKind::kBarrier, kAnyRanks, kAnyBytes, "dissemination"},
};

static constexpr const AlgorithmRow* find_algorithm(transport::OperationKind kind, std::string_view name) noexcept {
  for (const AlgorithmRow& row : kAlgorithms) {
    if (row.kind == kind && row.name == name) return &row;
  }
  return nullptr;
}

static constexpr bool every_tuning_row_names_an_algorithm() noexcept {
  for (const TuningRow& row : kTuning) {
    if (find_algorithm(row.kind, row.name) == nullptr) return false;
  }
  return true;
}
static_assert(every_tuning_row_names_an_algorithm());
static_assert(std::ranges::all_of(kTuning, [](const TuningRow& row) {
  return row.most_ranks < kManyRanks || row.most_ranks == kAnyRanks;
}));

std::span<const AlgorithmRow> registered_algorithms() noexcept {
  return kAlgorithms;
}

const AlgorithmRow& select(transport::OperationKind kind, GroupShape group, size_t num_bytes,
                           const AlgorithmOverrides& overrides) noexcept {
  if (const AlgorithmRow* wanted = overrides.of(kind)) return *wanted;
  const TuningRow* fitting = std::find_if(std::begin(kTuning), std::end(kTuning), [&](const TuningRow& row) {
    return row.kind == kind && row.fits(group, num_bytes);
  });
  return *find_algorithm(kind, fitting->name);
}

static constexpr bool has_distinct_names() noexcept {
  for (const KernelRow& row : kKernels) {
    if (find_algorithm(row.kind, name_of(row.kernel)) != nullptr) return false;
  }
  return true;
}
static_assert(has_distinct_names(), "AXON_ALGO could not tell which one is meant");

static void append_word(std::string& list, std::string_view word) {
  if (!list.empty()) list += ", ";
  list += word;
}

static std::string names_of_algorithms(transport::OperationKind kind) {
  std::string names;
  for (const AlgorithmRow& row : kAlgorithms) {
    if (row.kind == kind) append_word(names, row.name);
  }
  return names;
}

static std::string names_of_kernels(transport::OperationKind kind) {
  std::string names;
  for (const KernelRow& row : kKernels) {
    if (row.kind == kind) append_word(names, name_of(row.kernel));
  }
  return names;
}

static std::string names_of_operations() {
  std::string names;
  for (const transport::OperationKind kind : kOperations) append_word(names, name_of(kind));
  return names;
}

static std::string_view trimmed(std::string_view text) noexcept {
  const size_t begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

static Status unknown_choice(transport::OperationKind kind, std::string_view name) {
  const std::string algorithms = names_of_algorithms(kind);
  return {ErrorCode::kInvalidArgument, "unknown algorithm '" + std::string(name) + "' for " + name_of(kind) +
                                           "; allowed are " + (algorithms.empty() ? "" : algorithms + "; ") +
                                           names_of_kernels(kind) + " (for CUDA tensors)"};
}

Status AlgorithmOverrides::add(std::string_view choice) {
  const size_t equals = choice.find('=');
  if (equals == std::string_view::npos) {
    return {ErrorCode::kInvalidArgument,
            "'" + std::string(choice) + "' is not of the form operation=algorithm or operation=kernel"};
  }
  const std::string_view operation = trimmed(choice.substr(0, equals));
  const std::string_view name = trimmed(choice.substr(equals + 1));
  const auto* const known = std::ranges::find_if(kOperations, [&](auto kind) { return name_of(kind) == operation; });
  if (known == std::end(kOperations)) {
    return {ErrorCode::kInvalidArgument,
            "unknown operation '" + std::string(operation) + "'; allowed are " + names_of_operations()};
  }
  const transport::OperationKind kind = *known;
  if (const AlgorithmRow* row = find_algorithm(kind, name)) {
    by_kind_[static_cast<size_t>(kind)] = row;
    return Status();
  }
  const auto* const named = std::ranges::find_if(
      kKernels, [&](const KernelRow& row) { return row.kind == kind && name_of(row.kernel) == name; });
  if (named == std::end(kKernels)) return unknown_choice(kind, name);
  kernels_[static_cast<size_t>(kind)] = named->kernel;
  return Status();
}

Result<AlgorithmOverrides> AlgorithmOverrides::parse(std::string_view text) {
  AlgorithmOverrides overrides;
  while (!text.empty()) {
    const size_t end = std::min(text.find(';'), text.size());
    const std::string_view choice = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (choice.empty()) continue;
    AXON_TRY(overrides.add(choice));
  }
  return overrides;
}

}  // namespace axon::collectives
