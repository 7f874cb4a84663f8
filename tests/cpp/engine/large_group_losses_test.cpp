// Tests losses in a group of 40 ranks, each on a host of its own, which are not all connected. Receives from any source
// end with the last of the other ranks. A rank meets lost processes again only to notify them.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "engine/engines.hpp"

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

constexpr size_t kNumRanks = 40;
constexpr auto kTimeout = 100s;

class LargeGroupLosses : public testing::Test {
 protected:
  static std::vector<uint64_t> hosts() {
    std::vector<uint64_t> hosts;
    for (size_t rank = 0; rank < kNumRanks; ++rank) hosts.push_back(rank);
    return hosts;
  }

  size_t num_known(size_t rank) {
    return engines_[rank].exclusively([&] { return engines_[rank].peers().num_known(); });
  }

  transport::LoopbackFabric fabric_{{.largest_eager_num_bytes = size_t{64} << 10}};
  Engines engines_{loopback_transports(fabric_, kNumRanks), {}, hosts()};
  std::vector<std::unique_ptr<Communicator>> group_ = engines_.form("a large group");
};

TEST_F(LargeGroupLosses, receives_from_any_source_fail_once_all_other_ranks_are_gone) {
  const auto receive = TestOperation::receive(1, -1, 7, kTimeout);
  group_[3]->start(*receive);
  for (uint32_t rank = 0; rank < kNumRanks; ++rank) {
    if (rank != 3) fabric_.kill(rank);
  }
  ASSERT_TRUE(group_[3]->wait(*receive, sync::Clock::now() + kTimeout));
  EXPECT_EQ(receive->status().code(), ErrorCode::kPeerLost) << receive->status().message();
}

TEST_F(LargeGroupLosses, receives_from_any_source_fail_once_all_other_ranks_have_left) {
  for (size_t rank = 0; rank < kNumRanks; ++rank) {
    if (rank != 3) group_[rank]->leave("it is done");
  }
  const auto receive = TestOperation::receive(1, -1, 7, kTimeout);
  group_[3]->start(*receive);
  ASSERT_TRUE(group_[3]->wait(*receive, sync::Clock::now() + kTimeout));
  EXPECT_EQ(receive->status().code(), ErrorCode::kPeerLost) << receive->status().message();
}

TEST_F(LargeGroupLosses, receives_from_any_source_await_the_last_rank_that_is_left) {
  const auto receive = TestOperation::receive(1, -1, 7, kTimeout);
  group_[3]->start(*receive);
  for (uint32_t rank = 0; rank < kNumRanks; ++rank) {
    if (rank != 3 && rank != 20) fabric_.kill(rank);
  }
  EXPECT_TRUE(run(*group_[20], *TestOperation::send({5}, 3, 7)).ok());
  ASSERT_TRUE(group_[3]->wait(*receive, sync::Clock::now() + kTimeout));
  EXPECT_TRUE(receive->status().ok()) << receive->status().message();
  EXPECT_EQ(receive->data[0], 5);
}

// Rank 0 notifies ranks at distances of powers of two of a failure, so rank 4 and not rank 3.
TEST_F(LargeGroupLosses, a_group_that_forms_meets_only_those_again_that_it_notifies) {
  fabric_.kill(3);
  fabric_.kill(4);
  for (const int lost : {3, 4}) {
    const auto receive = TestOperation::receive(1, lost, 7, kTimeout);
    EXPECT_EQ(run(*group_[0], *receive).code(), ErrorCode::kPeerLost) << receive->status().message();
  }
  const size_t num_before = num_known(0);
  EXPECT_EQ(run(*group_[0], *TestOperation::barrier(100ms)).code(), ErrorCode::kTimeout);
  EXPECT_EQ(num_known(0), num_before + 1);
}

}  // namespace
}  // namespace axon::engine
