// Lists the selectors' choices as ranges of ranks and bytes, for diagnostics.
//
//   for (const ChoiceRange& range : tabulate(4, 4, choose)) …   // groups of 4 ranks
//
// It asks the selectors, instead of printing their tables: what a table names may not serve every size.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <string_view>
#include <vector>

#include "collectives/tuning.hpp"

namespace axon::collectives {

// The operations of a group.
inline constexpr std::array kOperations{
    transport::OperationKind::kBroadcast,     transport::OperationKind::kAllReduce, transport::OperationKind::kReduce,
    transport::OperationKind::kAllGather,     transport::OperationKind::kGather,    transport::OperationKind::kScatter,
    transport::OperationKind::kReduceScatter, transport::OperationKind::kAllToAll,  transport::OperationKind::kBarrier,
    transport::OperationKind::kPointToPoint,
};

struct Choice {
  std::string_view algorithm;  // for CPU tensors; empty: sends and receives have none
  std::string_view kernel;     // for CUDA tensors; empty: through host memory

  friend bool operator==(const Choice&, const Choice&) = default;
};

struct ChoiceRange {
  transport::OperationKind kind{};
  int fewest_ranks = 0;
  int most_ranks = 0;  // kAnyRanks: any number
  size_t fewest_bytes = 0;
  size_t most_bytes = 0;  // kAnyBytes: any number
  Choice choice;
};

using Chooser = std::function<Choice(transport::OperationKind kind, int num_ranks, size_t num_bytes)>;

// Returns the choices for groups of `fewest_ranks` to `most_ranks` ranks (or kAnyRanks) and from one byte on: by
// operation, ranks and bytes.
std::vector<ChoiceRange> tabulate(int fewest_ranks, int most_ranks, const Chooser& choose);

}  // namespace axon::collectives
