// Checks that warm short operations between engines with rings, as a process's own engine has them, make no heap
// allocation on any thread.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "counted_new.hpp"
#include "engine/engines.hpp"
#include "transport/rings/ring.hpp"

namespace {
std::atomic<bool> counting{false};  // counts in all threads, the background thread included
std::atomic<size_t> num_allocations{0};
}  // namespace

void axon::on_allocation() noexcept {
  if (counting.load(std::memory_order_relaxed)) num_allocations.fetch_add(1);
}

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

constexpr int kNumRounds = 100;

class EngineAllocation : public testing::TestWithParam<size_t> {};

// Element counts that fit in one ring entry, in two, in many, and that exceed a ring's limit.
INSTANTIATE_TEST_SUITE_P(Sizes, EngineAllocation, testing::Values(1, 8, 200, 1000));

// Rank 0 sends and rank 1 receives, both reduce, and so on in turn.
std::vector<std::unique_ptr<TestOperation>> operations_of(size_t rank, size_t num_elements) {
  std::vector<std::unique_ptr<TestOperation>> operations;
  for (int round = 0; round < kNumRounds; ++round) {
    const std::vector<int32_t> values(num_elements, round);
    operations.push_back(rank == 0 ? TestOperation::send(values, 1, 3) : TestOperation::receive(num_elements, 0, 3));
    operations.push_back(TestOperation::all_reduce(values, 30s));
  }
  return operations;
}

void finish(Communicator& communicator, TestOperation& operation) {
  ASSERT_TRUE(communicator.wait(operation, sync::Clock::now() + 30s));
  ASSERT_TRUE(operation.status().ok()) << operation.status().message();
  await_release(operation);
}

TEST_P(EngineAllocation, none_once_warm) {
  const auto network = transport::kRings.make();
  Engines engines(transports_of(*network, 2));
  const auto group = engines.form("warm");
  // More operations than will be in flight, all of which arrive before they are awaited, first at one rank, then at the
  // other.
  for (const int first : {0, 1}) {
    const int second = 1 - first;
    const std::vector<std::unique_ptr<TestOperation>> operations[] = {operations_of(0, GetParam()),
                                                                      operations_of(1, GetParam())};
    for (const auto& operation : operations[first]) group[first]->start(*operation);
    const auto sent = TestOperation::send(std::vector<int32_t>(GetParam()), second, 4);
    const auto received = TestOperation::receive(GetParam(), first, 4);
    group[first]->start(*sent);
    group[second]->start(*received);
    finish(*group[second], *received);
    finish(*group[first], *sent);
    for (const auto& operation : operations[second]) group[second]->start(*operation);
    for (const int rank : {0, 1}) {
      for (const auto& operation : operations[rank]) finish(*group[rank], *operation);
    }
  }
  if (GetParam() * sizeof(int32_t) <= transport::RingMemory::kMostBytes) {
    const std::vector<transport::Lane> lanes = group[0]->path_to(1).value().lanes;
    ASSERT_EQ(std::ranges::count(lanes, "ring", &transport::Lane::name), 1);
  }
  const std::vector<std::unique_ptr<TestOperation>> operations[] = {operations_of(0, GetParam()),
                                                                    operations_of(1, GetParam())};
  counting.store(true);
  for (size_t i = 0; i < operations[0].size(); ++i) {
    for (const size_t rank : {0, 1}) group[rank]->start(*operations[rank][i]);
    for (const size_t rank : {0, 1}) finish(*group[rank], *operations[rank][i]);
  }
  counting.store(false);
  EXPECT_EQ(num_allocations.exchange(0), 0u) << "in " << 2 * kNumRounds << " operations per rank";
  EXPECT_EQ(operations[1][2]->data, std::vector<int32_t>(GetParam(), 1));
  EXPECT_EQ(operations[0].back()->data, std::vector<int32_t>(GetParam(), 2 * (kNumRounds - 1)));
}

}  // namespace
}  // namespace axon::engine
