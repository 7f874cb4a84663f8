// Selects the algorithm of an operation: a pure function over the tuning table, so that all ranks choose alike.
//
//   Result<AlgorithmOverrides> overrides = AlgorithmOverrides::parse("all_reduce=ring;all_reduce=ll128");
//   const AlgorithmRow& row = select(OperationKind::kAllReduce, group, num_bytes, overrides.value());
//   fingerprint.algorithm = row.id;      // detects ranks that chose differently
//   co_await row.algorithm(exchange, arguments);
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "base/status.hpp"
#include "collectives/tuning.hpp"

namespace axon::collectives {

// The user's choices, which replace those of the tuning table: algorithms for CPU tensors, kernels for CUDA tensors.
// They must be the same on all ranks.
class AlgorithmOverrides {
 public:
  using Kernels = std::array<Kernel, static_cast<size_t>(transport::OperationKind::kPointToPoint) + 1>;

  // Parses any number of "operation=algorithm" and "operation=kernel", separated by semicolons. No operation has an
  // algorithm and a kernel of one name. An empty text overrides nothing.
  static Result<AlgorithmOverrides> parse(std::string_view text);
  // Returns those of AXON_ALGO, AXON_EXACT and AXON_REPRODUCIBLE.
  static Result<AlgorithmOverrides> of_environment();

  const AlgorithmRow* of(transport::OperationKind kind) const noexcept { return by_kind_[static_cast<size_t>(kind)]; }
  // Returns whether every algorithm must round sums of half types only once (AXON_EXACT).
  bool is_exact() const noexcept { return is_exact_; }
  void set_exact(bool is_exact) noexcept { is_exact_ = is_exact; }
  // Returns whether every algorithm must reduce each element in rank order (AXON_REPRODUCIBLE). Such algorithms also
  // round only once.
  bool is_reproducible() const noexcept { return is_reproducible_; }
  void set_reproducible(bool is_reproducible) noexcept { is_reproducible_ = is_reproducible; }
  // By operation; kNone where nothing is overridden.
  const Kernels& kernels() const noexcept { return kernels_; }
  Kernel kernel_of(transport::OperationKind kind) const noexcept { return kernels_[static_cast<size_t>(kind)]; }

 private:
  Status add(std::string_view choice);

  std::array<const AlgorithmRow*, static_cast<size_t>(transport::OperationKind::kPointToPoint)> by_kind_{};
  Kernels kernels_{};
  bool is_exact_ = false;
  bool is_reproducible_ = false;
};

// `num_bytes` is a size that all ranks know: the tensor's (broadcast, all_reduce, reduce), or that of all shards
// together (all_gather, reduce_scatter). It is 0 where sizes may differ (gather, scatter, all_to_all) and for barrier.
const AlgorithmRow& select(transport::OperationKind kind, GroupShape group, size_t num_bytes,
                           const AlgorithmOverrides& overrides) noexcept;

}  // namespace axon::collectives
