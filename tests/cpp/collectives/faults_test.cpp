// Tests every algorithm with a transport that fails, delays, reorders or dies at each of its steps. A rank that ends
// with success has the right result, and no rank hangs when all have been notified.
#include <gtest/gtest.h>

#include "collectives/operands.hpp"
#include "collectives/selector.hpp"
#include "collectives/world.hpp"

namespace axon::collectives {
namespace {

struct FaultCase {
  AlgorithmRow row;
  int num_ranks;
};

class FaultsTest : public testing::TestWithParam<FaultCase> {
 protected:
  struct Outcome {
    uint64_t num_sends = 0;
    uint64_t num_fetches = 0;
    std::vector<uint64_t> num_steps{};  // by rank
    bool all_ok = true;
  };

  int num_ranks() const { return GetParam().num_ranks; }
  // The distance between paired messages: all pairs up to four ranks, and a sample beyond.
  uint64_t stride() const { return num_ranks() <= 4 ? 1 : 7; }

  // Some messages are eager, others wait for a fetch.
  Outcome run(const transport::FaultPlan& plan) const {
    SCOPED_TRACE(to_string(plan));
    OperationCase operation = uniform_case(GetParam().row.kind, num_ranks(), 700);
    operation.root = 1;
    Operands operands(operation, num_ranks());  // must outlive the world, whose transports may still read it
    World world(num_ranks(), plan);
    const std::vector<Status> statuses = world.run(operands.calls(GetParam().row));
    Outcome outcome{.num_sends = world.num_sends(), .num_fetches = world.num_fetches()};
    for (int rank = 0; rank < num_ranks(); ++rank) {
      const bool ok = statuses[static_cast<size_t>(rank)].ok();
      if (ok) operands.expect_right(rank);
      outcome.all_ok &= ok;
      outcome.num_steps.push_back(world.num_steps(rank));
    }
    return outcome;
  }
};

TEST_P(FaultsTest, survives_any_failing_send_and_fetch) {
  for (const uint64_t seed : {0, 1}) {
    const Outcome unharmed = run(delays_of_seed(seed));
    ASSERT_TRUE(unharmed.all_ok);
    for (const bool late : {false, true}) {
      transport::FaultPlan plan = delays_of_seed(seed);
      plan.fails_late = late;
      for (plan.failing_send = 1; plan.failing_send <= unharmed.num_sends; ++plan.failing_send) {
        EXPECT_FALSE(run(plan).all_ok) << to_string(plan);
      }
      plan.failing_send = 0;
      for (plan.failing_fetch = 1; plan.failing_fetch <= unharmed.num_fetches; ++plan.failing_fetch) {
        EXPECT_FALSE(run(plan).all_ok) << to_string(plan);
      }
    }
  }
}

TEST_P(FaultsTest, survives_the_death_of_any_rank_at_any_step) {
  for (const uint64_t seed : {0, 1}) {
    const Outcome unharmed = run(delays_of_seed(seed));
    for (int victim = 0; victim < num_ranks(); ++victim) {
      for (uint64_t step = 1; step <= unharmed.num_steps[static_cast<size_t>(victim)]; ++step) {
        transport::FaultPlan plan = delays_of_seed(seed);
        plan.kills = {{static_cast<uint32_t>(victim), step}};
        run(plan);
      }
    }
  }
}

// One message arrives after all that can proceed without it, and a second one at any time before or after it.
TEST_P(FaultsTest, is_right_whichever_two_messages_come_late) {
  static constexpr uint64_t kLast = 15;  // in rounds; the world gives up after further rounds in which nothing moves
  const uint64_t num_sends = run(delays_of_seed(0)).num_sends;
  for (uint64_t last = 1; last <= num_sends; last += stride()) {
    for (uint64_t other = 1; other <= num_sends; ++other) {
      for (const uint64_t num_rounds : {1, 2, 4}) {
        transport::FaultPlan plan = delays_of_seed(0);
        plan.holds = {{.send = last, .num_rounds = kLast}};
        if (other != last) plan.holds.push_back({.send = other, .num_rounds = num_rounds});
        ASSERT_TRUE(run(plan).all_ok) << to_string(plan);
        if (other == last) break;
      }
    }
  }
}

// A late message combined with a failing send.
TEST_P(FaultsTest, survives_a_failing_send_whichever_message_comes_late) {
  const uint64_t num_sends = run(delays_of_seed(0)).num_sends;
  for (uint64_t late = 1; late <= num_sends; late += stride()) {
    for (uint64_t failing = 1; failing <= num_sends; ++failing) {
      transport::FaultPlan plan = delays_of_seed(0);
      plan.holds = {{.send = late, .num_rounds = 3}};
      plan.failing_send = failing;
      EXPECT_FALSE(run(plan).all_ok) << to_string(plan);
    }
  }
}

TEST_P(FaultsTest, is_right_under_any_seed) {
  for (uint64_t seed = 1; seed <= 100; ++seed) ASSERT_TRUE(run(delays_of_seed(seed)).all_ok) << "seed " << seed;
}

std::vector<FaultCase> fault_cases() {
  std::vector<FaultCase> cases;
  for (const AlgorithmRow& row : kAlgorithms) {
    for (const int num_ranks : {2, 3, 4, 5}) cases.push_back({row, num_ranks});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Registered, FaultsTest, testing::ValuesIn(fault_cases()),
                         [](const testing::TestParamInfo<FaultCase>& info) {
                           const FaultCase& fault = info.param;
                           return std::string(name_of(fault.row.kind)) + "_" + std::string(fault.row.name) + "_" +
                                  std::to_string(fault.num_ranks) + "_ranks";
                         });

// Two ranks call different operations at the same sequence number. Either inbox notices, whichever rank entered first.
TEST(MismatchTest, different_operations_fail_on_both_ranks) {
  for (const uint64_t seed : {0, 1, 2, 3, 4, 5}) {
    Operands reducing(uniform_case(transport::OperationKind::kAllReduce, 2, 100), 2);
    Operands gathering(uniform_case(transport::OperationKind::kAllGather, 2, 100), 2);
    const AlgorithmOverrides none;
    std::vector<Call> calls = reducing.calls(select(transport::OperationKind::kAllReduce, {2, 1}, 400, none));
    calls[1] = gathering.calls(select(transport::OperationKind::kAllGather, {2, 1}, 400, none))[1];
    World world(2, delays_of_seed(seed));
    for (const Status& status : world.run(calls)) EXPECT_FALSE(status.ok());
    ASSERT_FALSE(world.mismatches().empty());
    const Mismatch& found = world.mismatches().front();
    const auto called_by = [](int rank) {
      return rank == 0 ? transport::OperationKind::kAllReduce : transport::OperationKind::kAllGather;
    };
    EXPECT_EQ(found.ours, called_by(found.rank));
    EXPECT_EQ(found.theirs, called_by(1 - found.rank));
  }
}

TEST(MismatchTest, different_sizes_fail_on_both_ranks) {
  Operands small(uniform_case(transport::OperationKind::kAllReduce, 2, 0), 2);
  Operands large(uniform_case(transport::OperationKind::kAllReduce, 2, 100000), 2);
  const AlgorithmOverrides none;
  std::vector<Call> calls = small.calls(select(transport::OperationKind::kAllReduce, {2, 1}, 0, none));
  calls[1] = large.calls(select(transport::OperationKind::kAllReduce, {2, 1}, 400000, none))[1];
  calls[1].fingerprint.num_elements = 100000;
  World world(2, delays_of_seed(0));
  for (const Status& status : world.run(calls)) EXPECT_FALSE(status.ok());
  EXPECT_FALSE(world.mismatches().empty());
}

}  // namespace
}  // namespace axon::collectives
