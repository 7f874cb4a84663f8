#include "collectives/selector.hpp"

#include <gtest/gtest.h>

#include <set>

namespace axon::collectives {
namespace {

std::string_view chosen(transport::OperationKind kind, int num_ranks, size_t num_bytes, std::string_view text = "") {
  return select(kind, {num_ranks, num_ranks}, num_bytes, AlgorithmOverrides::parse(text).value()).name;
}

std::string failure_of(std::string_view text) {
  Result<AlgorithmOverrides> parsed = AlgorithmOverrides::parse(text);
  return parsed.ok() ? "" : parsed.status().message();
}

TEST(SelectorTest, ids_are_unique_in_an_operation) {
  std::set<std::pair<transport::OperationKind, uint8_t>> seen;
  for (const AlgorithmRow& row : kAlgorithms) {
    EXPECT_NE(row.id, 0);
    EXPECT_TRUE(seen.insert({row.kind, row.id}).second) << row.name;
  }
}

TEST(SelectorTest, every_operation_has_an_algorithm_at_any_size) {
  for (int kind = static_cast<int>(transport::OperationKind::kBroadcast);
       kind <= static_cast<int>(transport::OperationKind::kBarrier); ++kind) {
    for (const int num_ranks : {1, 2, 7, 64, 4096}) {
      for (const size_t num_bytes : {size_t{0}, size_t{1}, size_t{1} << 16, size_t{1} << 50}) {
        EXPECT_EQ(select(static_cast<transport::OperationKind>(kind), {num_ranks, num_ranks}, num_bytes, {}).kind,
                  static_cast<transport::OperationKind>(kind));
      }
    }
  }
}

TEST(SelectorTest, small_tensors_take_latency_and_large_ones_bandwidth) {
  EXPECT_EQ(chosen(transport::OperationKind::kAllReduce, 2, 8), "one_shot");
  EXPECT_EQ(chosen(transport::OperationKind::kAllReduce, 2, 1 << 20), "two_shot");
  EXPECT_EQ(chosen(transport::OperationKind::kAllReduce, 64, 8), "recursive_doubling");
  EXPECT_EQ(chosen(transport::OperationKind::kAllReduce, 64, 64 << 20), "ring");
  EXPECT_EQ(chosen(transport::OperationKind::kBroadcast, 8, 8), "binomial");
  EXPECT_EQ(chosen(transport::OperationKind::kBroadcast, 8, 64 << 20), "chain");
  EXPECT_EQ(chosen(transport::OperationKind::kAllGather, 16, 128), "bruck");
}

TEST(SelectorTest, few_hosts_broadcast_along_a_chain) {
  const size_t most = size_t{64} << 10;
  EXPECT_EQ(select(transport::OperationKind::kBroadcast, {8, 8}, most, {}).name, "binomial");
  EXPECT_EQ(select(transport::OperationKind::kBroadcast, {8, 8}, most + 1, {}).name, "chain");
  EXPECT_EQ(select(transport::OperationKind::kBroadcast, {9, 9}, most + 1, {}).name, "scatter_ring");
  EXPECT_EQ(select(transport::OperationKind::kBroadcast, {8, 1}, most + 1, {}).name, "binomial");
}

TEST(SelectorTest, many_hosts_reduce_medium_tensors_in_few_steps) {
  const size_t most = size_t{256} << 10;
  EXPECT_EQ(select(transport::OperationKind::kAllReduce, {64, 64}, most, {}).name, "recursive_doubling");
  EXPECT_EQ(select(transport::OperationKind::kAllReduce, {64, 64}, most + 1, {}).name, "ring");
  EXPECT_EQ(select(transport::OperationKind::kAllReduce, {64, 1}, most, {}).name, "ring");
}

TEST(SelectorTest, hosts_with_several_ranks_reduce_within_them_first) {
  EXPECT_EQ(select(transport::OperationKind::kAllReduce, {4, 2}, 64 << 20, {}).name, "hierarchical");
  EXPECT_EQ(select(transport::OperationKind::kAllReduce, {5, 4}, 64 << 20, {}).name, "hierarchical");
  EXPECT_EQ(select(transport::OperationKind::kAllReduce, {4, 4}, 64 << 20, {}).name, "two_shot");
  EXPECT_EQ(select(transport::OperationKind::kAllReduce, {4, 1}, 64 << 20, {}).name, "two_shot");
  EXPECT_EQ(select(transport::OperationKind::kBroadcast, {4, 2}, 64 << 20, {}).name, "hierarchical");
  EXPECT_EQ(select(transport::OperationKind::kReduce, {4, 2}, 64 << 20, {}).name, "hierarchical");
  EXPECT_EQ(select(transport::OperationKind::kAllGather, {4, 2}, 64 << 20, {}).name, "hierarchical");
  EXPECT_EQ(select(transport::OperationKind::kReduceScatter, {4, 2}, 64 << 20, {}).name, "hierarchical");
}

TEST(SelectorTest, exact_sums_take_an_algorithm_that_rounds_once) {
  AlgorithmOverrides overrides;
  overrides.set_exact(true);
  for (const transport::OperationKind kind : {transport::OperationKind::kAllReduce, transport::OperationKind::kReduce,
                                              transport::OperationKind::kReduceScatter}) {
    for (const size_t num_bytes : {8, 1 << 10, 1 << 15, 1 << 18, 64 << 20}) {
      const AlgorithmRow& row = select(kind, {16, 2}, num_bytes, overrides);
      EXPECT_TRUE(!row.name.starts_with("hierarchical") || row.name == "hierarchical_exact") << row.name;
      EXPECT_EQ(row.exact_id, 0);
    }
  }
}

TEST(SelectorTest, reproducible_sums_take_an_algorithm_that_adds_in_rank_order) {
  AlgorithmOverrides overrides;
  overrides.set_reproducible(true);
  for (const GroupShape group : {GroupShape{2, 1}, {4, 1}, {8, 1}, {64, 1}, {16, 2}, {64, 64}}) {
    for (const size_t num_bytes : {8, 1 << 13, 1 << 15, 1 << 18, 64 << 20}) {
      const std::string_view all_reduced =
          select(transport::OperationKind::kAllReduce, group, num_bytes, overrides).name;
      EXPECT_TRUE(all_reduced == "one_shot" || all_reduced == "two_shot") << all_reduced;
      EXPECT_EQ(select(transport::OperationKind::kReduce, group, num_bytes, overrides).name, "two_shot");
      EXPECT_EQ(select(transport::OperationKind::kReduceScatter, group, num_bytes, overrides).name, "direct");
    }
  }
}

TEST(SelectorTest, a_substitute_has_no_substitute) {
  for (const AlgorithmRow& row : kAlgorithms) {
    for (const uint8_t id : {row.exact_id, row.rank_order_id}) {
      if (id == 0) continue;
      const AlgorithmRow* substitute = find_algorithm(row.kind, id);
      ASSERT_NE(substitute, nullptr) << row.name;
      EXPECT_EQ(id == row.exact_id ? substitute->exact_id : substitute->rank_order_id, 0) << row.name;
    }
  }
}

TEST(SelectorTest, ranks_of_one_host_broadcast_by_a_tree_at_any_size) {
  EXPECT_EQ(select(transport::OperationKind::kBroadcast, {8, 1}, 64 << 20, {}).name, "binomial");
}

TEST(SelectorTest, overrides_win_for_their_operation_only) {
  constexpr std::string_view kText = " all_reduce = ring ;broadcast=binomial;";
  EXPECT_EQ(chosen(transport::OperationKind::kAllReduce, 2, 8, kText), "ring");
  EXPECT_EQ(chosen(transport::OperationKind::kBroadcast, 8, 64 << 20, kText), "binomial");
  EXPECT_EQ(chosen(transport::OperationKind::kReduce, 8, 8, kText), chosen(transport::OperationKind::kReduce, 8, 8));
}

TEST(SelectorTest, a_bad_override_names_the_word_and_what_is_allowed) {
  EXPECT_EQ(failure_of("all_reduce=rings"),
            "unknown algorithm 'rings' for all_reduce; allowed are one_shot, recursive_doubling, two_shot, ring, "
            "hierarchical, hierarchical_exact; ll_one_shot, ll_two_shot, ll128, zero_copy (for "
            "CUDA tensors)");
  EXPECT_EQ(failure_of("send/recv=ring"),
            "unknown algorithm 'ring' for send/recv; allowed are ll128, zero_copy (for CUDA tensors)");
  EXPECT_EQ(failure_of("allreduce=ring"),
            "unknown operation 'allreduce'; allowed are broadcast, all_reduce, reduce, all_gather, gather, scatter, "
            "reduce_scatter, all_to_all, barrier, send/recv");
  EXPECT_EQ(failure_of("ring"), "'ring' is not of the form operation=algorithm or operation=kernel");
}

TEST(SelectorTest, kernels_and_algorithms_are_overridden_independently) {
  const AlgorithmOverrides overrides =
      AlgorithmOverrides::parse("all_reduce=ll128;all_reduce=ring;send/recv = zero_copy").value();
  EXPECT_EQ(overrides.of(transport::OperationKind::kAllReduce)->name, "ring");
  EXPECT_EQ(overrides.kernel_of(transport::OperationKind::kAllReduce), Kernel::kLl128);
  EXPECT_EQ(overrides.kernel_of(transport::OperationKind::kPointToPoint), Kernel::kZeroCopy);
  EXPECT_EQ(overrides.kernel_of(transport::OperationKind::kReduce), Kernel::kNone);
}

TEST(SelectorTest, a_kernel_leaves_cpu_tensors_to_the_table) {
  EXPECT_EQ(chosen(transport::OperationKind::kAllReduce, 2, 8, "all_reduce=ll128"), "one_shot");
}

TEST(SelectorTest, a_kernel_of_another_operation_is_an_error) {
  EXPECT_EQ(
      failure_of("broadcast=ll_one_shot"),
      "unknown algorithm 'll_one_shot' for broadcast; allowed are binomial, scatter_ring, hierarchical, chain; ll128, "
      "ll128_scattered, zero_copy (for CUDA tensors)");
  EXPECT_NE(failure_of("all_reduce=none"), "");
}

}  // namespace
}  // namespace axon::collectives
