// Every algorithm with a send that fails, and with a rank that dies, at each of its steps: whoever ends well has the
// right result, and nobody is stuck once all have been told.
#include <gtest/gtest.h>

#include "collectives/operands.hpp"
#include "collectives/selector.hpp"
#include "collectives/world.hpp"

namespace axon {
namespace {

constexpr int kNumRanks = 5;

class FaultsTest : public testing::TestWithParam<AlgorithmRow> {
 protected:
  static OperationCase operation() {
    OperationCase operation = uniform_case(GetParam().kind, kNumRanks, 700);
    operation.root = 1;
    return operation;
  }

  struct Counts {
    uint64_t num_sends = 0;
    std::vector<uint64_t> num_steps{};  // by rank
  };

  static Counts run(const FaultPlan& plan) {
    SCOPED_TRACE(to_string(plan));
    Operands operands(operation(), kNumRanks);  // outlives the world, whose transports may still read it
    World world(kNumRanks, plan);
    const std::vector<Status> statuses = world.run(operands.calls(GetParam()));
    Counts counts{.num_sends = world.num_sends()};
    for (int rank = 0; rank < kNumRanks; ++rank) {
      if (statuses[static_cast<size_t>(rank)].ok()) operands.expect_right(rank);
      counts.num_steps.push_back(world.num_steps(rank));
    }
    return counts;
  }
};

TEST_P(FaultsTest, survives_any_failing_send) {
  for (const uint64_t seed : {0, 1}) {
    const uint64_t num_sends = run(delays_of_seed(seed)).num_sends;
    ASSERT_GT(num_sends, 0u);
    for (uint64_t send = 1; send <= num_sends; ++send) {
      FaultPlan plan = delays_of_seed(seed);
      plan.failing_send = send;
      run(plan);
    }
  }
}

TEST_P(FaultsTest, survives_the_death_of_any_rank_at_any_step) {
  for (const uint64_t seed : {0, 1}) {
    const Counts unharmed = run(delays_of_seed(seed));
    for (int victim = 0; victim < kNumRanks; ++victim) {
      for (uint64_t step = 1; step <= unharmed.num_steps[static_cast<size_t>(victim)]; ++step) {
        FaultPlan plan = delays_of_seed(seed);
        plan.kills = {{static_cast<uint32_t>(victim), step}};
        run(plan);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Registered, FaultsTest,
                         testing::ValuesIn(registered_algorithms().begin(), registered_algorithms().end()),
                         [](const testing::TestParamInfo<AlgorithmRow>& info) {
                           return std::string(name_of(info.param.kind)) + "_" + std::string(info.param.name);
                         });

// Two ranks that call different things at the same sequence number: rank 0's inbox or rank 1's finds out, whoever of
// them entered first.
TEST(MismatchTest, different_operations_fail_on_both_ranks) {
  for (const uint64_t seed : {0, 1, 2, 3, 4, 5}) {
    Operands reducing(uniform_case(OperationKind::kAllReduce, 2, 100), 2);
    Operands gathering(uniform_case(OperationKind::kAllGather, 2, 100), 2);
    const AlgorithmOverrides none;
    std::vector<Call> calls = reducing.calls(select(OperationKind::kAllReduce, 2, 400, none));
    calls[1] = gathering.calls(select(OperationKind::kAllGather, 2, 400, none))[1];
    World world(2, delays_of_seed(seed));
    for (const Status& status : world.run(calls)) EXPECT_FALSE(status.ok());
    ASSERT_FALSE(world.mismatches().empty());
    const Mismatch& found = world.mismatches().front();
    const auto called_by = [](int rank) { return rank == 0 ? OperationKind::kAllReduce : OperationKind::kAllGather; };
    EXPECT_EQ(found.ours, called_by(found.rank));
    EXPECT_EQ(found.theirs, called_by(1 - found.rank));
  }
}

TEST(MismatchTest, different_sizes_fail_on_both_ranks) {
  Operands small(uniform_case(OperationKind::kAllReduce, 2, 0), 2);
  Operands large(uniform_case(OperationKind::kAllReduce, 2, 100000), 2);
  const AlgorithmOverrides none;
  std::vector<Call> calls = small.calls(select(OperationKind::kAllReduce, 2, 0, none));
  calls[1] = large.calls(select(OperationKind::kAllReduce, 2, 400000, none))[1];
  calls[1].fingerprint.num_elements = 100000;
  World world(2, delays_of_seed(0));
  for (const Status& status : world.run(calls)) EXPECT_FALSE(status.ok());
  EXPECT_FALSE(world.mismatches().empty());
}

}  // namespace
}  // namespace axon
