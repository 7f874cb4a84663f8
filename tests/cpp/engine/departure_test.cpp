// Tests ranks that abort a group: ranks that would wait for them are notified, and messages sent before still arrive.
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "engine/engines.hpp"

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

class DepartureTest : public testing::TestWithParam<transport::NetworkKind> {
 protected:
  static constexpr size_t kLarge = 1 << 20;  // waits at its sender until it is received

  void expect_told(int rank, TestOperation& operation, const std::string& culprit) {
    ASSERT_TRUE(group_[static_cast<size_t>(rank)]->wait(operation, sync::Clock::now() + 10s));
    EXPECT_EQ(operation.status().code(), ErrorCode::kAborted);
    EXPECT_NE(operation.status().message().find(culprit + " reports: it had enough"), std::string::npos)
        << operation.status().message();
  }
  void abort(size_t rank) { group_[rank]->abort("it had enough"); }

  const std::unique_ptr<transport::Network> network_ = GetParam().make();
  Engines engines_{transports_of(*network_, 3)};
  std::vector<std::unique_ptr<Communicator>> group_ = engines_.form("test");
};

INSTANTIATE_TEST_SUITE_P(Networks, DepartureTest,
                         testing::Values(transport::kLoopback, transport::kRails, transport::kRings,
                                         transport::kRingsCopies),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(DepartureTest, receives_from_a_rank_that_aborts_fail_now_and_later) {
  auto waiting = TestOperation::receive(4, 1, 7);
  group_[0]->start(*waiting);
  abort(1);
  expect_told(0, *waiting, "rank 1");
  await_release(*waiting);
  auto later = TestOperation::receive(4, 1, 8);
  run(*group_[0], *later);
  expect_told(0, *later, "rank 1");
}

TEST_P(DepartureTest, what_was_sent_before_is_received_and_no_more) {
  auto small = TestOperation::send({1, 2}, 0, 1);
  auto large = TestOperation::send(std::vector<int32_t>(kLarge, 5), 0, 2);
  group_[1]->start(*small);
  group_[1]->start(*large);
  auto missing = TestOperation::receive(1, 1, 3);
  group_[0]->start(*missing);
  abort(1);
  expect_told(0, *missing, "rank 1");
  auto received_large = TestOperation::receive(kLarge, 1, 2);
  EXPECT_TRUE(run(*group_[0], *received_large).ok()) << received_large->status().message();
  EXPECT_EQ(received_large->data, std::vector<int32_t>(kLarge, 5));
  auto received_small = TestOperation::receive(2, 1, 1);
  EXPECT_TRUE(run(*group_[0], *received_small).ok());
  for (TestOperation* operation : {small.get(), large.get(), missing.get()}) await_release(*operation);
}

TEST_P(DepartureTest, sends_to_a_rank_that_aborts_fail_now_and_later) {
  auto waiting = TestOperation::send(std::vector<int32_t>(kLarge), 1, 1);
  group_[0]->start(*waiting);
  abort(1);
  expect_told(0, *waiting, "rank 1");
  auto later = TestOperation::send({1}, 1, 2);
  run(*group_[0], *later);
  expect_told(0, *later, "rank 1");
  group_[1].reset();  // releases the messages that it was sent
  await_release(*waiting);
}

TEST_P(DepartureTest, sends_that_are_not_received_do_not_succeed_when_the_group_is_destroyed) {
  auto waiting = TestOperation::send(std::vector<int32_t>(kLarge), 1, 1);
  auto arrived = TestOperation::send({1}, 1, 2);
  group_[0]->start(*waiting);
  run(*group_[0], *arrived);
  auto witness = TestOperation::receive(1, 0, 2);
  EXPECT_TRUE(run(*group_[1], *witness).ok());  // submitted after the other one
  group_[1].reset();
  ASSERT_TRUE(group_[0]->wait(*waiting, sync::Clock::now() + 10s));
  EXPECT_FALSE(waiting->status().ok());
  await_release(*waiting);
}

TEST_P(DepartureTest, receive_from_any_rank_fails_once_no_other_rank_is_left) {
  auto waiting = TestOperation::receive(1, messaging::kAnyRank, 1);
  auto witness = TestOperation::receive(1, 1, 2);
  group_[0]->start(*waiting);
  group_[0]->start(*witness);
  abort(1);
  expect_told(0, *witness, "rank 1");
  EXPECT_FALSE(waiting->finished());
  abort(2);
  ASSERT_TRUE(group_[0]->wait(*waiting, sync::Clock::now() + 10s));
  EXPECT_NE(waiting->status().message().find("all other ranks are gone"), std::string::npos);
  for (TestOperation* operation : {waiting.get(), witness.get()}) await_release(*operation);
}

TEST_P(DepartureTest, other_groups_go_on) {
  auto others = engines_.form("other");
  abort(1);
  on_all_ranks(3, [&](int rank) {
    auto operation = TestOperation::all_reduce({1}, 30s);
    EXPECT_TRUE(run(*others[static_cast<size_t>(rank)], *operation).ok()) << operation->status().message();
  });
}

}  // namespace
}  // namespace axon::engine
