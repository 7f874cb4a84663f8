// Tests ranks that form a group at different times: messages that reach a rank before it has formed the group are kept.
#include <gtest/gtest.h>

#include <string>

#include "engine/engines.hpp"
#include "transport/rings/ring.hpp"

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

class FormingTest : public testing::TestWithParam<transport::NetworkKind> {
 protected:
  static constexpr int kMany = 200;

  // Waits until rank 1's engine has received all of rank 0's messages; they arrive in order.
  void let_messages_arrive() {
    static constexpr size_t kNumElements = 2 * transport::RingMemory::kMostBytes / sizeof(int32_t);
    auto sent = TestOperation::send(std::vector<int32_t>(kNumElements), 1, 0);
    auto received = TestOperation::receive(kNumElements, 0, 0);
    earlier_[0]->start(*sent);
    EXPECT_TRUE(run(*earlier_[1], *received).ok());
    EXPECT_TRUE(earlier_[0]->wait(*sent, sync::Clock::now() + 10s));
    await_release(*sent);
  }

  // Sent by rank 0 before rank 1 has formed the group: more messages than are sent without waiting for receives.
  std::vector<std::unique_ptr<TestOperation>> send_many() {
    std::vector<std::unique_ptr<TestOperation>> sends;
    for (int i = 0; i < kMany; ++i) {
      first_->start(*sends.emplace_back(TestOperation::send(std::vector<int32_t>(15'000, i), 1, 3)));
    }
    EXPECT_FALSE(sends.back()->finished());
    return sends;
  }

  // Returns the error of rank 1's first collective, which must not wait for its timeout.
  void expect_to_hear_at_once(const std::string& reason) {
    let_messages_arrive();
    const std::unique_ptr<Communicator> late = engines_.form("late", 1, addresses_);
    auto operation = TestOperation::all_reduce({1, 2}, 30s);
    const sync::Clock::time_point begin = sync::Clock::now();
    const Status& status = run(*late, *operation);
    EXPECT_LT(sync::Clock::now() - begin, 5s);
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.message().find("rank 0 reports: "), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(reason), std::string::npos) << status.message();
  }

  const std::unique_ptr<transport::Network> network_ = GetParam().make();
  Engines engines_{transports_of(*network_, 2)};
  std::vector<std::unique_ptr<Communicator>> earlier_ = engines_.form("earlier");
  std::vector<PeerAddress> addresses_ = engines_.make_addresses();
  std::unique_ptr<Communicator> first_ = engines_.form("late", 0, addresses_);
};

INSTANTIATE_TEST_SUITE_P(Networks, FormingTest, testing::Values(transport::kLoopback, transport::kRings),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(FormingTest, early_data_waits_for_the_group) {
  auto sent = TestOperation::send({7}, 1, 3);
  EXPECT_TRUE(run(*first_, *sent).ok());
  let_messages_arrive();
  const std::unique_ptr<Communicator> late = engines_.form("late", 1, addresses_);
  auto received = TestOperation::receive(1, 0, 3);
  EXPECT_TRUE(run(*late, *received).ok());
  EXPECT_EQ(received->data[0], 7);
}

TEST_P(FormingTest, abort_before_another_rank_has_formed_the_group_ends_its_first_collective) {
  first_->abort("enough");
  expect_to_hear_at_once("enough");
}

TEST_P(FormingTest, timeout_before_another_rank_has_formed_the_group_ends_its_first_collective) {
  auto operation = TestOperation::barrier(50ms);
  EXPECT_EQ(run(*first_, *operation).code(), ErrorCode::kTimeout);
  expect_to_hear_at_once("barrier #1: Timed out after 50 ms");
}

TEST_P(FormingTest, what_came_for_a_group_that_was_given_up_takes_no_room_from_the_next) {
  const auto sends = send_many();
  let_messages_arrive();
  engines_.give_up_addresses();
  for (const auto& each : sends) EXPECT_TRUE(first_->wait(*each, sync::Clock::now() + 30s));
  for (const auto& each : sends) await_release(*each);
  EXPECT_NE(sends.back()->status().message().find("rank 1"), std::string::npos) << sends.back()->status().message();
  const std::vector<PeerAddress> addresses = engines_.make_addresses();
  const std::unique_ptr<Communicator> next = engines_.form("next", 0, addresses);
  auto unreceived = TestOperation::send({1}, 1, 3);
  EXPECT_TRUE(run(*first_, *unreceived).ok());
  auto sent = TestOperation::send({7}, 1, 3);
  EXPECT_TRUE(run(*next, *sent).ok());
  let_messages_arrive();
  const std::unique_ptr<Communicator> late = engines_.form("next", 1, addresses);
  auto received = TestOperation::receive(1, 0, 3);
  EXPECT_TRUE(run(*late, *received).ok()) << received->status().message();
  EXPECT_EQ(received->data[0], 7);
  EXPECT_EQ(engines_[1].num_refused(), 0) << "a member's messages must not be refused as foreign";
}

TEST_P(FormingTest, group_cannot_be_formed_with_an_address_that_was_given_up) {
  engines_.give_up_addresses();
  auto formed = engines_[1].form({.name = "late", .rank = 1, .addresses = addresses_});
  ASSERT_FALSE(formed.ok());
  EXPECT_NE(formed.status().message().find("the address given for rank 1"), std::string::npos)
      << formed.status().message();
}

TEST_P(FormingTest, messages_beyond_a_bound_wait_at_their_sender_until_the_group_is_formed) {
  const auto sends = send_many();
  let_messages_arrive();
  const std::unique_ptr<Communicator> late = engines_.form("late", 1, addresses_);
  for (int i = 0; i < kMany; ++i) {
    auto received = TestOperation::receive(15'000, 0, 3);
    ASSERT_TRUE(run(*late, *received).ok()) << received->status().message();
    ASSERT_EQ(received->data, std::vector<int32_t>(15'000, i));
  }
  for (const auto& each : sends) {
    EXPECT_TRUE(first_->wait(*each, sync::Clock::now() + 30s));
    EXPECT_TRUE(each->status().ok()) << each->status().message();
    await_release(*each);
  }
}

}  // namespace
}  // namespace axon::engine
