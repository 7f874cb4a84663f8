// The algorithms for CPU tensors, by name. collectives/selector.hpp selects one of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "collectives/algorithms.hpp"

namespace axon::collectives {

// An algorithm and its name. The id is part of the wire protocol: append, never renumber.
struct AlgorithmRow {
  transport::OperationKind kind;
  std::string_view name;
  uint8_t id;
  Algorithm algorithm;
  // The algorithm that takes its place with AXON_EXACT=1; 0: itself, since it rounds sums of half types only once.
  uint8_t exact_id = 0;
  // The one that does with AXON_REPRODUCIBLE=1; 0: itself, since it reduces in rank order, or reduces nothing.
  uint8_t rank_order_id = 0;
};

inline constexpr AlgorithmRow kAlgorithms[] = {
    {transport::OperationKind::kBroadcast, "binomial", 1, broadcast::binomial},
    {transport::OperationKind::kBroadcast, "scatter_ring", 2, broadcast::scatter_ring},
    {transport::OperationKind::kBroadcast, "hierarchical", 3, broadcast::hierarchical},
    {transport::OperationKind::kBroadcast, "chain", 4, broadcast::chain},
    {transport::OperationKind::kAllReduce, "one_shot", 1, all_reduce::one_shot},
    {transport::OperationKind::kAllReduce, "recursive_doubling", 2, all_reduce::recursive_doubling, 0, 1},
    {transport::OperationKind::kAllReduce, "two_shot", 3, all_reduce::two_shot},
    {transport::OperationKind::kAllReduce, "ring", 4, all_reduce::ring, 0, 3},
    {transport::OperationKind::kAllReduce, "hierarchical", 5, all_reduce::hierarchical, 6, 3},
    {transport::OperationKind::kAllReduce, "hierarchical_exact", 6, all_reduce::hierarchical_exact, 0, 3},
    {transport::OperationKind::kReduce, "binomial", 1, reduce::binomial, 0, 2},
    {transport::OperationKind::kReduce, "two_shot", 2, reduce::two_shot},
    {transport::OperationKind::kReduce, "hierarchical", 3, reduce::hierarchical, 4, 2},
    {transport::OperationKind::kReduce, "hierarchical_exact", 4, reduce::hierarchical_exact, 0, 2},
    {transport::OperationKind::kAllGather, "direct", 1, all_gather::direct},
    {transport::OperationKind::kAllGather, "bruck", 2, all_gather::bruck},
    {transport::OperationKind::kAllGather, "ring", 3, all_gather::ring},
    {transport::OperationKind::kAllGather, "hierarchical", 4, all_gather::hierarchical},
    {transport::OperationKind::kGather, "direct", 1, gather::direct},
    {transport::OperationKind::kScatter, "direct", 1, scatter::direct},
    {transport::OperationKind::kReduceScatter, "direct", 1, reduce_scatter::direct},
    {transport::OperationKind::kReduceScatter, "ring", 2, reduce_scatter::ring, 0, 1},
    {transport::OperationKind::kReduceScatter, "hierarchical", 3, reduce_scatter::hierarchical, 4, 1},
    {transport::OperationKind::kReduceScatter, "hierarchical_exact", 4, reduce_scatter::hierarchical_exact, 0, 1},
    {transport::OperationKind::kAllToAll, "pairwise", 1, all_to_all::pairwise},
    {transport::OperationKind::kBarrier, "dissemination", 1, barrier::dissemination},
    {transport::OperationKind::kBarrier, "hierarchical", 2, barrier::hierarchical},
};

// Both return null if the operation has no such algorithm.
constexpr const AlgorithmRow* find_algorithm(transport::OperationKind kind, std::string_view name) noexcept {
  for (const AlgorithmRow& row : kAlgorithms) {
    if (row.kind == kind && row.name == name) return &row;
  }
  return nullptr;
}

constexpr const AlgorithmRow* find_algorithm(transport::OperationKind kind, uint8_t id) noexcept {
  for (const AlgorithmRow& row : kAlgorithms) {
    if (row.kind == kind && row.id == id) return &row;
  }
  return nullptr;
}

// For constant expressions: under a sanitizer, g++ compares no address with null there.
constexpr bool has_algorithm(transport::OperationKind kind, std::string_view name) noexcept {
  return std::ranges::any_of(kAlgorithms,
                             [&](const AlgorithmRow& row) { return row.kind == kind && row.name == name; });
}

}  // namespace axon::collectives
