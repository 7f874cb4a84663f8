// Tests ranks that abort a group or leave it: ranks that would wait for them are notified, and messages sent before
// still arrive.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <initializer_list>
#include <string>
#include <thread>

#include "comes_true.hpp"
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
  Engines engines_{transports_of(*network_, 3), {3, collectives::AlgorithmOverrides::parse("broadcast=chain").value()}};
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

// Ranks that leave with notice. A broadcast goes from its root to the next rank, and from there to the one after that.
class LeaveTest : public DepartureTest {
 protected:
  static constexpr auto kTimeout = 30s;

  void leave(size_t rank) { group_[rank]->leave("it had enough"); }
  // Waits until the rank has been notified.
  void expect_knows(size_t rank, int leaver) {
    auto witness = TestOperation::receive(1, leaver, 99);
    group_[rank]->start(*witness);
    expect_told(static_cast<int>(rank), *witness, "rank " + std::to_string(leaver));
    await_release(*witness);
  }
  std::unique_ptr<TestOperation> broadcast(size_t rank, int root) const {
    return TestOperation::broadcast({rank == static_cast<size_t>(root) ? 5 : 0}, root, kTimeout);
  }
  std::unique_ptr<TestOperation> start_broadcast(size_t rank, int root) {
    auto operation = broadcast(rank, root);
    group_[rank]->start(*operation);
    return operation;
  }
  void expect_broadcast(size_t rank, TestOperation& operation) {
    EXPECT_TRUE(group_[rank]->wait(operation, sync::Clock::now() + 10s));
    EXPECT_TRUE(operation.status().ok()) << operation.status().message();
    EXPECT_EQ(operation.data[0], 5);
    await_release(operation);
  }
  void expect_broadcast_from(int root, std::initializer_list<size_t> ranks) {
    for (const size_t rank : ranks) expect_broadcast(rank, *start_broadcast(rank, root));
  }
  // The operation names the rank that left.
  void expect_fails(size_t rank, TestOperation& operation) {
    group_[rank]->start(operation);
    expect_told(static_cast<int>(rank), operation, "rank 1");
    await_release(operation);
  }
};

INSTANTIATE_TEST_SUITE_P(Networks, LeaveTest,
                         testing::Values(transport::kLoopback, transport::kRails, transport::kRailsWithFaults,
                                         transport::kRings, transport::kRingsCopies),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(LeaveTest, collective_that_the_rank_has_completed_completes_though_another_one_is_late) {
  const auto waiting = start_broadcast(0, 1);
  expect_broadcast_from(1, {1});
  leave(1);
  group_[1].reset();
  for (const size_t rank : {0, 2}) expect_knows(rank, 1);
  EXPECT_FALSE(waiting->finished());
  expect_broadcast_from(1, {2});
  expect_broadcast(0, *waiting);
  EXPECT_TRUE(group_[0]->failure().ok()) << group_[0]->failure().message();
}

TEST_P(LeaveTest, collectives_that_begin_later_fail_at_once) {
  expect_broadcast_from(1, {1});
  leave(1);
  for (const size_t rank : {0, 2}) expect_knows(rank, 1);
  expect_broadcast_from(1, {2, 0});
  for (const size_t rank : {0, 2}) {
    expect_fails(rank, *broadcast(rank, 1));  // in which rank 0 only waits for rank 2
    EXPECT_NE(group_[rank]->failure().message().find("rank 1 reports: it had enough"), std::string::npos);
  }
}

TEST_P(LeaveTest, collective_that_waits_for_the_rank_fails_at_once) {
  expect_broadcast_from(1, {1, 2, 0});
  auto waiting = TestOperation::all_reduce({1}, kTimeout);
  group_[0]->start(*waiting);
  leave(1);
  expect_told(0, *waiting, "rank 1");
  await_release(*waiting);
}

TEST_P(LeaveTest, collective_that_fails_spares_the_one_before_that_the_rank_has_completed) {
  const auto waiting = start_broadcast(0, 1);
  auto hopeless = TestOperation::barrier(kTimeout);
  group_[0]->start(*hopeless);
  expect_broadcast_from(1, {1});
  leave(1);
  expect_told(0, *hopeless, "rank 1");
  await_release(*hopeless);
  expect_broadcast_from(1, {2});
  expect_broadcast(0, *waiting);
}

TEST_P(LeaveTest, collective_that_begins_later_spares_the_one_before_that_the_rank_has_completed) {
  const auto waiting = start_broadcast(0, 1);
  expect_broadcast_from(1, {1});
  leave(1);
  expect_knows(0, 1);
  expect_fails(0, *broadcast(0, 1));
  expect_broadcast_from(1, {2});
  expect_broadcast(0, *waiting);
}

TEST_P(LeaveTest, messages_that_were_sent_are_received_and_others_go_on) {
  auto sent = TestOperation::send({1, 2}, 0, 1);
  EXPECT_TRUE(run(*group_[1], *sent).ok());
  auto unreceived = TestOperation::send(std::vector<int32_t>(kLarge), 1, 1);
  group_[0]->start(*unreceived);
  leave(1);
  expect_told(0, *unreceived, "rank 1");
  expect_knows(0, 1);
  auto received = TestOperation::receive(2, 1, 1);
  EXPECT_TRUE(run(*group_[0], *received).ok()) << received->status().message();
  EXPECT_EQ(received->data, (std::vector<int32_t>{1, 2}));
  auto later = TestOperation::send({1}, 1, 2);
  run(*group_[0], *later);
  expect_told(0, *later, "rank 1");
  auto to_other = TestOperation::send({7}, 2, 1);
  auto from_other = TestOperation::receive(1, 0, 1);
  EXPECT_TRUE(run(*group_[0], *to_other).ok());
  EXPECT_TRUE(run(*group_[2], *from_other).ok());
  group_[1].reset();  // releases the message that it was sent
  await_release(*unreceived);
}

TEST_P(LeaveTest, rank_with_something_in_flight_aborts) {
  const auto waiting = start_broadcast(0, 1);
  expect_broadcast_from(1, {1});
  auto unsent = TestOperation::receive(1, 2, 1);
  group_[1]->start(*unsent);
  leave(1);
  EXPECT_TRUE(group_[1]->wait(*unsent, sync::Clock::now() + 10s));
  EXPECT_EQ(unsent->status().code(), ErrorCode::kAborted);
  expect_told(0, *waiting, "rank 1");
  for (TestOperation* operation : {unsent.get(), waiting.get()}) await_release(*operation);
}

TEST_P(LeaveTest, of_ranks_that_leave_the_one_that_has_begun_fewest_collectives_decides) {
  for (const auto& order : {std::array<size_t, 2>{1, 2}, {2, 1}}) {
    group_ = engines_.form("test");
    expect_broadcast_from(1, {1, 2});
    expect_broadcast_from(2, {2});
    for (const size_t leaver : order) {
      leave(leaver);
      expect_knows(0, static_cast<int>(leaver));
    }
    expect_broadcast_from(1, {0});
    expect_fails(0, *TestOperation::all_reduce({1}, kTimeout));
  }
}

TEST_P(LeaveTest, rank_whose_collectives_failed_since_another_one_left_leaves_in_order_too) {
  expect_broadcast_from(1, {1});
  leave(1);
  expect_knows(2, 1);
  expect_broadcast_from(1, {2});
  expect_fails(2, *broadcast(2, 1));
  leave(2);
  for (const int leaver : {1, 2}) expect_knows(0, leaver);
  expect_broadcast_from(1, {0});
}

// Records which ranks the GPU side is told to be lost.
class LossRecorder final : public DeviceHook {
 public:
  void on_failed(const Status&) noexcept override { num_failures.fetch_add(1); }
  void on_rank_lost(int rank, const Status& reason) noexcept override {
    text = reason.message();
    rank_lost.store(rank);
  }
  Status fault() noexcept override { return Status(); }

  std::atomic<int> num_failures{0};
  std::atomic<int> rank_lost{-1};
  std::string text;  // written before rank_lost
};

TEST_P(LeaveTest, device_hook_is_told_of_the_rank_and_of_no_failure) {
  LossRecorder hook;
  group_[0]->set_device_hook(&hook);
  leave(1);
  EXPECT_TRUE(comes_true([&] { return hook.rank_lost.load() == 1; }));
  EXPECT_EQ(hook.text, "rank 1 reports: it had enough");
  EXPECT_EQ(hook.num_failures.load(), 0);
  expect_fails(0, *broadcast(0, 1));
  EXPECT_EQ(hook.num_failures.load(), 1);
  group_[0]->set_device_hook(nullptr);
}

TEST_P(LeaveTest, device_hook_that_is_set_later_is_told_of_the_rank) {
  leave(1);
  expect_knows(0, 1);
  LossRecorder hook;
  group_[0]->set_device_hook(&hook);
  EXPECT_EQ(hook.rank_lost.load(), 1);
  EXPECT_EQ(hook.text, "rank 1 reports: it had enough");
  group_[0]->set_device_hook(nullptr);
}

}  // namespace
}  // namespace axon::engine
