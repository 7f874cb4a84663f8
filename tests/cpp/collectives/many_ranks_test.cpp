// Tests 1,024 ranks in this process: small operations give right results, in a number of steps that grows with the
// logarithm of the ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "collectives/operands.hpp"
#include "collectives/selector.hpp"
#include "collectives/world.hpp"

namespace axon::collectives {
namespace {

struct Size {
  transport::OperationKind kind;
  size_t num_elements;  // float32; of each rank's shard in all_gather
};

class ManyRanksTest : public testing::TestWithParam<Size> {
 protected:
  static const AlgorithmRow& algorithm(int num_ranks) {
    const size_t num_shards =
        GetParam().kind == transport::OperationKind::kAllGather ? static_cast<size_t>(num_ranks) : 1;
    return select(GetParam().kind, {num_ranks, num_ranks}, GetParam().num_elements * num_shards * sizeof(float), {});
  }

  // The most messages that a rank sends and receives.
  static uint64_t run(int num_ranks, uint64_t seed) {
    const AlgorithmRow& row = algorithm(num_ranks);
    Operands operands(uniform_case(row.kind, num_ranks, GetParam().num_elements), num_ranks);
    transport::FaultPlan plan = delays_of_seed(seed);
    plan.largest_eager_num_bytes = size_t{64} << 10;  // as over UCX; each step is a message, sent or received
    World world(num_ranks, plan);
    uint64_t most_steps = 0;
    for (const Status& status : world.run(operands.calls(row))) EXPECT_TRUE(status.ok()) << status.message();
    for (int rank = 0; rank < num_ranks; ++rank) {
      operands.expect_right(rank);
      most_steps = std::max(most_steps, world.num_steps(rank));
    }
    return most_steps;
  }
};

TEST_P(ManyRanksTest, right_where_messages_are_late_and_out_of_order) {
  run(1024, 1);
}

TEST_P(ManyRanksTest, right_in_a_logarithm_of_steps) {
  for (const int num_ranks : {16, 64, 256, 1000, 1024}) {
    const auto rounds = static_cast<uint64_t>(std::bit_width(static_cast<unsigned>(num_ranks) - 1));
    const uint64_t most_steps = run(num_ranks, 0);
    // One message sent and one received per round, and two more rounds if the number of ranks is not a power of two.
    EXPECT_LE(most_steps, 2 * rounds + 4) << num_ranks << " ranks, " << algorithm(num_ranks).name;
    EXPECT_GE(most_steps, 2 * rounds - 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Operations, ManyRanksTest,
                         testing::Values(Size{transport::OperationKind::kAllReduce, 2},
                                         Size{transport::OperationKind::kAllReduce, 1000},
                                         Size{transport::OperationKind::kAllGather, 2},
                                         Size{transport::OperationKind::kBarrier, 0}),
                         [](const testing::TestParamInfo<Size>& info) {
                           return std::string(name_of(info.param.kind)) + "_" + std::to_string(info.param.num_elements);
                         });

// 512 hosts of 8 ranks.
class ManyHostsTest : public testing::TestWithParam<AlgorithmRow> {};

TEST_P(ManyHostsTest, right_on_4096_ranks) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "takes 2.8 GB without a sanitizer, and several times as much with one";
#endif
  static constexpr int kNumRanks = 4096;
  std::vector<uint64_t> hosts;
  for (uint64_t rank = 0; rank < kNumRanks; ++rank) hosts.push_back(rank / 8);
  Operands operands(uniform_case(GetParam().kind, kNumRanks, 500), kNumRanks);
  transport::FaultPlan plan = delays_of_seed(0);
  plan.largest_eager_num_bytes = size_t{64} << 10;
  World world(messaging::Topology(hosts), plan);
  for (const Status& status : world.run(operands.calls(GetParam()))) ASSERT_TRUE(status.ok()) << status.message();
  for (int rank = 0; rank < kNumRanks; ++rank) operands.expect_right(rank);
}

std::vector<AlgorithmRow> hierarchical_all_reduces() {
  std::vector<AlgorithmRow> rows;
  for (const AlgorithmRow& row : kAlgorithms) {
    if (row.kind == transport::OperationKind::kAllReduce && row.name.starts_with("hierarchical")) rows.push_back(row);
  }
  return rows;
}

INSTANTIATE_TEST_SUITE_P(AllReduce, ManyHostsTest, testing::ValuesIn(hierarchical_all_reduces()),
                         [](const testing::TestParamInfo<AlgorithmRow>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace axon::collectives
