// Selects the algorithm of an operation: a pure function over a table, so that all ranks choose alike.
//
//   Result<AlgorithmOverrides> overrides = AlgorithmOverrides::parse("all_reduce=ring;all_reduce=ll128");
//   const AlgorithmRow& row = select(OperationKind::kAllReduce, group, num_bytes, overrides.value());
//   fingerprint.algorithm = row.id;      // detects ranks that chose differently
//   co_await row.algorithm(exchange, arguments);
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.hpp"
#include "collectives/collective.hpp"
#include "collectives/kernel_names.hpp"

namespace axon::collectives {

// An algorithm and its name. The id is part of the wire protocol: append, never renumber.
struct AlgorithmRow {
  transport::OperationKind kind;
  std::string_view name;
  uint8_t id;
  Algorithm algorithm;
};

// The user's choices, which replace those of the tables: algorithms for CPU tensors, kernels for CUDA tensors. They
// must be the same on all ranks.
class AlgorithmOverrides {
 public:
  using Kernels = std::array<Kernel, static_cast<size_t>(transport::OperationKind::kPointToPoint) + 1>;

  // Parses any number of "operation=algorithm" and "operation=kernel", separated by semicolons. No operation has an
  // algorithm and a kernel of one name. An empty text overrides nothing.
  static Result<AlgorithmOverrides> parse(std::string_view text);

  const AlgorithmRow* of(transport::OperationKind kind) const noexcept { return by_kind_[static_cast<size_t>(kind)]; }
  // By operation; kNone where nothing is overridden.
  const Kernels& kernels() const noexcept { return kernels_; }
  Kernel kernel_of(transport::OperationKind kind) const noexcept { return kernels_[static_cast<size_t>(kind)]; }

 private:
  Status add(std::string_view choice);

  std::array<const AlgorithmRow*, static_cast<size_t>(transport::OperationKind::kPointToPoint)> by_kind_{};
  Kernels kernels_{};
};

std::span<const AlgorithmRow> registered_algorithms() noexcept;

// The properties of a group that determine the choice.
struct GroupShape {
  int num_ranks;
  bool on_one_host;
};

// `num_bytes` is a size that all ranks know: the tensor's (broadcast, all_reduce, reduce), or that of all shards
// together (all_gather, reduce_scatter). It is 0 where sizes may differ (gather, scatter, all_to_all) and for barrier.
const AlgorithmRow& select(transport::OperationKind kind, GroupShape group, size_t num_bytes,
                           const AlgorithmOverrides& overrides) noexcept;

}  // namespace axon::collectives
