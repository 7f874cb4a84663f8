// The tuning table: which algorithm for CPU tensors and which kernel for CUDA tensors serves an operation best, by the
// group's shape and by size. The two selectors (collectives/selector.hpp, gpu_comm/selector.hpp) choose from it.
//
//   const auto is_for_the_host = [](const TuningRow& row) { return row.algorithm != nullptr; };
//   const TuningRow* row = find_row(kind, group, num_bytes, is_for_the_host);
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "collectives/algorithm_names.hpp"
#include "collectives/kernel_names.hpp"

namespace axon::collectives {

inline constexpr int kAnyRanks = std::numeric_limits<int>::max();
inline constexpr size_t kAnyBytes = std::numeric_limits<size_t>::max();

// The table treats groups of this many ranks and larger ones alike.
inline constexpr int kManyRanks = 33;

// The properties of a group that determine the choice.
struct GroupShape {
  int num_ranks;
  int num_hosts;
};

// kShared: several hosts, at least one of them with several ranks.
enum class Hosts : uint8_t { kAny, kOne, kShared };

// The operations that a row is for. What is left out does not matter.
struct TuningLimits {
  int most_ranks = kAnyRanks;
  size_t most_bytes = kAnyBytes;
  Hosts hosts = Hosts::kAny;

  constexpr bool include(GroupShape group, size_t num_bytes) const noexcept {
    return group.num_ranks <= most_ranks && num_bytes <= most_bytes && include(group);
  }

 private:
  constexpr bool include(GroupShape group) const noexcept {
    switch (hosts) {
      case Hosts::kAny:
        return true;
      case Hosts::kOne:
        return group.num_hosts == 1;
      case Hosts::kShared:
        return group.num_hosts > 1 && group.num_ranks > group.num_hosts;
    }
    return false;
  }
};

struct TuningRow {
  // The name is that of an algorithm or of a kernel; no operation has both of one name.
  consteval TuningRow(transport::OperationKind operation, TuningLimits operations, std::string_view name)
      : kind(operation),
        limits(operations),
        algorithm(find_algorithm(operation, name)),
        kernel(find_kernel(operation, name)) {
    if (has_algorithm(operation, name) == (kernel != Kernel::kNone)) throw "the name is not that of one choice";
    if (limits.most_ranks >= kManyRanks && limits.most_ranks != kAnyRanks) throw "not alike for kManyRanks and more";
  }

  transport::OperationKind kind;
  TuningLimits limits;
  const AlgorithmRow* algorithm;  // null in a row for CUDA tensors
  Kernel kernel;                  // kNone in a row for CPU tensors
};

std::span<const TuningRow> tuning_table() noexcept;

// Returns the first row that fits and that `serves(row)` accepts, or null.
template <typename Serves>
const TuningRow* find_row(transport::OperationKind kind, GroupShape group, size_t num_bytes, Serves serves) noexcept {
  for (const TuningRow& row : tuning_table()) {
    if (row.kind == kind && row.limits.include(group, num_bytes) && serves(row)) return &row;
  }
  return nullptr;
}

}  // namespace axon::collectives
