// Tests every registered algorithm on 1 to 17 ranks, over a loopback that delays and reorders by seed.
#include <gtest/gtest.h>

#include "collectives/allocation_counter.hpp"
#include "collectives/arithmetic/arithmetic.hpp"
#include "collectives/operands.hpp"
#include "collectives/selector.hpp"
#include "collectives/world.hpp"
#include "counted_new.hpp"

// Allocations are counted, so that a test can prove that the message path makes none.
void axon::on_allocation() noexcept {
  axon::collectives::AllocationCounter::on_allocation();
}

namespace axon::collectives {
namespace {

class AlgorithmTest : public testing::TestWithParam<AlgorithmRow> {
 protected:
  static void expect_success(World& world, Operands& operands) {
    const std::vector<Status> statuses = world.run(operands.calls(GetParam()));
    for (size_t rank = 0; rank < statuses.size(); ++rank) {
      ASSERT_TRUE(statuses[rank].ok()) << "rank " << rank << ": " << statuses[rank].message();
      operands.expect_right(static_cast<int>(rank));
    }
  }

  static void expect_success(const OperationCase& operation, uint64_t seed) {
    const int num_ranks = static_cast<int>(operation.num_elements.size());
    SCOPED_TRACE(testing::Message() << num_ranks << " ranks, seed " << seed << ", root " << operation.root << ", "
                                    << name_of(operation.dtype) << ", " << name_of(operation.reduction) << ", "
                                    << operation.num_elements[0] << " elements at rank 0");
    Operands operands(operation, num_ranks);
    World world(num_ranks, delays_of_seed(seed));
    expect_success(world, operands);
  }

  static bool reduces() {
    const transport::OperationKind kind = GetParam().kind;
    return kind == transport::OperationKind::kAllReduce || kind == transport::OperationKind::kReduce ||
           kind == transport::OperationKind::kReduceScatter;
  }
};

TEST_P(AlgorithmTest, right_for_any_number_of_ranks) {
  for (int num_ranks = 1; num_ranks <= 17; ++num_ranks) {
    for (const size_t num_elements : {0, 1, 3, 255, 5003}) {
      for (const uint64_t seed : {0, 1, 2}) {
        expect_success(uniform_case(GetParam().kind, num_ranks, num_elements), seed);
      }
    }
  }
}

TEST_P(AlgorithmTest, right_for_every_root) {
  for (const int num_ranks : {2, 3, 8, 11}) {
    for (int root = 0; root < num_ranks; ++root) {
      OperationCase operation = uniform_case(GetParam().kind, num_ranks, 999);
      operation.root = root;
      expect_success(operation, static_cast<uint64_t>(root));
    }
  }
}

TEST_P(AlgorithmTest, right_over_many_chunks) {
  for (const int num_ranks : {1, 2, 3, 7}) {
    const bool whole = GetParam().kind == transport::OperationKind::kBroadcast ||
                       GetParam().kind == transport::OperationKind::kAllReduce ||
                       GetParam().kind == transport::OperationKind::kReduce;
    const size_t num_elements = (size_t{5} << 16) * (whole ? static_cast<size_t>(num_ranks) : 1) + 13;
    for (const uint64_t seed : {0, 3}) expect_success(uniform_case(GetParam().kind, num_ranks, num_elements), seed);
  }
  // More messages than are ever in flight: 16 between hosts, and 8 of 2 MiB over rails.
  if (!reduces()) return;
  static constexpr size_t kTwentyMiB = (size_t{20} << 20) / sizeof(float);
  const size_t num_long = GetParam().kind == transport::OperationKind::kReduceScatter ? kTwentyMiB : 2 * kTwentyMiB;
  for (const uint64_t seed : {1, 3}) expect_success(uniform_case(GetParam().kind, 2, num_long), seed);
}

TEST_P(AlgorithmTest, right_for_uneven_shards) {
  for (const uint64_t seed : {0, 1, 2, 3}) {
    OperationCase operation = uniform_case(GetParam().kind, 6, 0);
    operation.num_elements = {7, 0, 200001, 0, 1, 3000};
    operation.root = 2;
    expect_success(operation, seed);
    operation.num_elements = {0, 0, 0, 5, 0, 0};
    expect_success(operation, seed);
  }
}

TEST_P(AlgorithmTest, right_for_every_type) {
  for (int type = 0; type <= static_cast<int>(DataType::kComplex128); ++type) {
    for (int reduction = reduces() ? 1 : 0; reduction <= (reduces() ? 9 : 0); ++reduction) {
      OperationCase operation = uniform_case(GetParam().kind, 5, 70001);
      operation.dtype = static_cast<DataType>(type);
      operation.reduction = static_cast<Reduction>(reduction);
      const ReductionPlan plan{.dtype = operation.dtype, .reduction = operation.reduction, .num_ranks = 5};
      if (reduces() && !check(plan).ok()) continue;
      expect_success(operation, static_cast<uint64_t>(type));
    }
  }
}

TEST_P(AlgorithmTest, second_run_allocates_nothing) {
  for (const int num_ranks : {2, 5}) {
    for (const size_t num_elements : {10, 300000}) {
      Operands operands(uniform_case(GetParam().kind, num_ranks, num_elements), num_ranks);
      World world(num_ranks, delays_of_seed(0));
      const std::vector<Call> calls = operands.calls(GetParam());
      for (int round = 0; round < 2; ++round) {
        for (const Status& status : world.run(calls)) ASSERT_TRUE(status.ok());
      }
      operands.reset();
      AllocationCounter::start();
      const std::vector<Status> statuses = world.run(calls);
      EXPECT_EQ(AllocationCounter::stop(), 0u) << num_ranks << " ranks, " << num_elements << " elements";
      for (int rank = 0; rank < num_ranks; ++rank) operands.expect_right(rank);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Registered, AlgorithmTest, testing::ValuesIn(kAlgorithms),
                         [](const testing::TestParamInfo<AlgorithmRow>& info) {
                           return std::string(name_of(info.param.kind)) + "_" + std::string(info.param.name);
                         });

TEST(AllReduceTest, random_floats_give_the_same_bits_on_all_ranks) {
  for (const AlgorithmRow& row : kAlgorithms) {
    if (row.kind != transport::OperationKind::kAllReduce) continue;
    for (int num_ranks = 2; num_ranks <= 17; num_ranks += 3) {
      SCOPED_TRACE(testing::Message() << row.name << ", " << num_ranks << " ranks");
      Operands operands(uniform_case(row.kind, num_ranks, 30011), num_ranks, Operands::Values::kRandomFloats);
      World world(num_ranks, delays_of_seed(5));
      for (const Status& status : world.run(operands.calls(row))) ASSERT_TRUE(status.ok());
      operands.expect_all_equal();
    }
  }
}

}  // namespace
}  // namespace axon::collectives
