// Tests hierarchical algorithms on even, uneven and interleaved hosts.
#include <gtest/gtest.h>

#include "collectives/operands.hpp"
#include "collectives/selector.hpp"
#include "collectives/world.hpp"

namespace axon::collectives {
namespace {

using Hosts = std::vector<uint64_t>;  // by rank

// Hosts with these numbers of ranks, in sequence.
Hosts in_sequence(const std::vector<int>& num_ranks) {
  Hosts hosts;
  for (size_t host = 0; host < num_ranks.size(); ++host) {
    hosts.insert(hosts.end(), static_cast<size_t>(num_ranks[host]), host);
  }
  return hosts;
}

// Ranks that take turns on the hosts, as with a launcher that places them round-robin.
Hosts in_turn(int num_hosts, int num_ranks) {
  Hosts hosts;
  for (int rank = 0; rank < num_ranks; ++rank) hosts.push_back(static_cast<uint64_t>(rank % num_hosts));
  return hosts;
}

std::vector<Hosts> shapes() {
  return {in_sequence({2, 2}),    in_sequence({1, 1}),          in_sequence({4, 4, 4, 4}), in_sequence({1, 3}),
          in_sequence({3, 1, 2}), in_sequence({5, 2, 2}),       in_sequence({4}),          in_turn(2, 6),
          in_turn(3, 7),          in_sequence({2, 2, 2, 2, 2}), Hosts{0, 1, 1, 0, 2, 1}};
}

bool is_hierarchical(const AlgorithmRow& row) {
  return row.name.starts_with("hierarchical");
}

std::vector<AlgorithmRow> hierarchical_rows() {
  std::vector<AlgorithmRow> rows;
  for (const AlgorithmRow& row : kAlgorithms) {
    if (is_hierarchical(row)) rows.push_back(row);
  }
  return rows;
}

class HierarchyTest : public testing::TestWithParam<AlgorithmRow> {
 protected:
  static void expect_right(const Hosts& hosts, const OperationCase& operation, uint64_t seed) {
    SCOPED_TRACE(testing::Message() << testing::PrintToString(hosts) << ", seed " << seed << ", root " << operation.root
                                    << ", " << operation.num_elements[0] << " elements at rank 0");
    Operands operands(operation, static_cast<int>(hosts.size()));
    World world(messaging::Topology(hosts), delays_of_seed(seed));
    const std::vector<Status> statuses = world.run(operands.calls(GetParam()));
    for (size_t rank = 0; rank < statuses.size(); ++rank) {
      ASSERT_TRUE(statuses[rank].ok()) << "rank " << rank << ": " << statuses[rank].message();
      operands.expect_right(static_cast<int>(rank));
    }
  }

  static bool reduces() {
    return GetParam().kind == transport::OperationKind::kAllReduce ||
           GetParam().kind == transport::OperationKind::kReduce ||
           GetParam().kind == transport::OperationKind::kReduceScatter;
  }
};

TEST_P(HierarchyTest, right_on_any_hosts) {
  for (const Hosts& hosts : shapes()) {
    for (const size_t num_elements : {0, 1, 3, 255, 5003}) {
      for (const uint64_t seed : {0, 1, 2, 3}) {
        expect_right(hosts, uniform_case(GetParam().kind, static_cast<int>(hosts.size()), num_elements), seed);
      }
    }
  }
}

TEST_P(HierarchyTest, right_for_every_root) {
  for (const Hosts& hosts : shapes()) {
    for (int root = 0; root < static_cast<int>(hosts.size()); ++root) {
      OperationCase operation = uniform_case(GetParam().kind, static_cast<int>(hosts.size()), 999);
      operation.root = root;
      expect_right(hosts, operation, static_cast<uint64_t>(root));
    }
  }
}

TEST_P(HierarchyTest, right_for_uneven_shards) {
  for (const Hosts& hosts : {in_sequence({2, 2, 2}), in_sequence({1, 3, 2}), in_turn(2, 6)}) {
    OperationCase operation = uniform_case(GetParam().kind, 6, 0);
    operation.root = 4;
    for (const uint64_t seed : {0, 1, 3}) {
      operation.num_elements = {7, 0, 200001, 0, 1, 3000};
      expect_right(hosts, operation, seed);
      operation.num_elements = {0, 0, 0, 5, 0, 0};
      expect_right(hosts, operation, seed);
    }
  }
}

// More segments than run side by side.
TEST_P(HierarchyTest, right_over_many_segments) {
  static constexpr size_t kThirtyThreeMiB = (size_t{33} << 20) / sizeof(float) + 13;  // over rails, segments of 8 MiB
  for (const Hosts& hosts : {in_sequence({2, 2}), in_sequence({2, 1})}) {
    const bool shards = GetParam().kind == transport::OperationKind::kAllGather ||
                        GetParam().kind == transport::OperationKind::kReduceScatter;
    const size_t num_elements = shards ? kThirtyThreeMiB / hosts.size() : kThirtyThreeMiB;
    for (const uint64_t seed : {0, 1, 3}) {
      expect_right(hosts, uniform_case(GetParam().kind, static_cast<int>(hosts.size()), num_elements), seed);
    }
  }
}

// Stages of more than 32 ranks, whose shards are uneven: two columns carry what 40 ranks have.
TEST_P(HierarchyTest, right_over_segments_on_a_large_host_beside_a_small_one) {
  const Hosts hosts = in_sequence({40, 2});
  const bool shards = GetParam().kind == transport::OperationKind::kAllGather ||
                      GetParam().kind == transport::OperationKind::kReduceScatter;
  const size_t num_elements = ((size_t{8} << 20) / sizeof(float) + 13) / (shards ? hosts.size() : 1);
  for (const uint64_t seed : {0, 1, 3}) {
    expect_right(hosts, uniform_case(GetParam().kind, static_cast<int>(hosts.size()), num_elements), seed);
  }
}

TEST_P(HierarchyTest, right_for_every_reduction_of_half_types) {
  if (!reduces()) GTEST_SKIP() << "reduces nothing";
  for (const DataType dtype : {DataType::kFloat16, DataType::kBFloat16}) {
    for (const Reduction reduction : {Reduction::kSum, Reduction::kAverage, Reduction::kProduct, Reduction::kMin,
                                      Reduction::kMax, Reduction::kPremulSum}) {
      OperationCase operation = uniform_case(GetParam().kind, 4, 3001);
      operation.dtype = dtype;
      operation.reduction = reduction;
      expect_right(in_sequence({2, 2}), operation, 1);  // averages over four ranks of small integers are exact
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Registered, HierarchyTest, testing::ValuesIn(hierarchical_rows()),
                         [](const testing::TestParamInfo<AlgorithmRow>& info) {
                           return std::string(name_of(info.param.kind)) + "_" + std::string(info.param.name);
                         });

TEST(HierarchicalAllReduceTest, random_floats_give_the_same_bits_on_all_ranks) {
  for (const AlgorithmRow& row : hierarchical_rows()) {
    if (row.kind != transport::OperationKind::kAllReduce) continue;
    for (const Hosts& hosts : shapes()) {
      for (const size_t num_elements : {1, 17, 30011}) {
        Operands operands(uniform_case(row.kind, static_cast<int>(hosts.size()), num_elements),
                          static_cast<int>(hosts.size()), Operands::Values::kRandomFloats);
        World world(messaging::Topology(hosts), delays_of_seed(5));
        for (const Status& status : world.run(operands.calls(row))) ASSERT_TRUE(status.ok());
        operands.expect_all_equal();
      }
    }
  }
}

}  // namespace
}  // namespace axon::collectives
