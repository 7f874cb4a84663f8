// Which algorithm an operation takes: a pure function over a table, so that all ranks choose alike.
//
//   Result<AlgorithmOverrides> overrides = AlgorithmOverrides::parse("all_reduce=ring;broadcast=binomial");
//   const AlgorithmRow& row = select(OperationKind::kAllReduce, {num_ranks, on_one_host}, num_bytes,
//                                    overrides.value());
//   fingerprint.algorithm = row.id;      // ranks that chose differently are told so
//   co_await row.algorithm(exchange, arguments);
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.hpp"
#include "collectives/collective.hpp"

namespace axon::collectives {

// An algorithm by its name. The id goes on the wire: append, never renumber.
struct AlgorithmRow {
  transport::OperationKind kind;
  std::string_view name;
  uint8_t id;
  Algorithm algorithm;
};

// What the user wants instead of the table's choice. Has to be the same on all ranks.
class AlgorithmOverrides {
 public:
  // "operation=algorithm", any number of them, separated by semicolons; nothing is overridden by an empty text.
  static Result<AlgorithmOverrides> parse(std::string_view text);

  const AlgorithmRow* of(transport::OperationKind kind) const noexcept { return by_kind_[static_cast<size_t>(kind)]; }

 private:
  std::array<const AlgorithmRow*, static_cast<size_t>(transport::OperationKind::kPointToPoint)> by_kind_{};
};

std::span<const AlgorithmRow> registered_algorithms() noexcept;

// What of a group counts for the choice.
struct GroupShape {
  int num_ranks;
  bool on_one_host;
};

// `num_bytes` is what all ranks know alike: the tensor's (broadcast, all_reduce, reduce), that of all shards together
// (all_gather, reduce_scatter), 0 where sizes may differ (gather, scatter, all_to_all) and for barrier.
const AlgorithmRow& select(transport::OperationKind kind, GroupShape group, size_t num_bytes,
                           const AlgorithmOverrides& overrides) noexcept;

// The tuning table for people: operation, ranks, hosts, bytes, algorithm, a line a row.
std::string describe_table();

}  // namespace axon::collectives
