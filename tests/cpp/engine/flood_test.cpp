// Tests ranks that are far ahead of others: their messages wait at the sender, share the fate of the operation they
// wait for, and arrive in order. A rank that sends without credit ends the group on every rank, but not the engine.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "engine/device_hook.hpp"
#include "engine/engines.hpp"

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

using Operations = std::vector<std::unique_ptr<TestOperation>>;

class FloodTest : public testing::TestWithParam<transport::NetworkKind> {
 protected:
  static constexpr size_t kNumElements = 15'000;  // 60,000 bytes: eager
  static constexpr messaging::Allowance kAllowance{.num_messages = 1 << 14, .num_bytes = 4 << 20};

  // Sent by rank 0; each has finished as far as it can by now.
  Operations start(int count, const std::function<std::unique_ptr<TestOperation>(int)>& make) {
    Operations operations;
    for (int i = 0; i < count; ++i) group_[0]->start(*operations.emplace_back(make(i)));
    return operations;
  }
  static std::vector<int32_t> values(int number) { return std::vector<int32_t>(kNumElements, number); }
  static std::unique_ptr<TestOperation> send(int number) { return TestOperation::send(values(number), 1, 0); }
  static std::unique_ptr<TestOperation> send_small(int number) { return TestOperation::send({number}, 1, 0); }
  static size_t num_finished(const Operations& operations) {
    return static_cast<size_t>(std::ranges::count_if(operations, [](const auto& each) { return each->finished(); }));
  }
  void receive(int number, std::vector<int32_t> expected) {
    auto received = TestOperation::receive(expected.size(), 0, 0);
    ASSERT_TRUE(run(*group_[1], *received).ok()) << received->status().message();
    ASSERT_EQ(received->data, expected) << "message " << number;
  }
  // Returns how many have failed, each with this reason.
  size_t expect_ended(const Operations& operations, const std::string& reason) {
    size_t num_failed = 0;
    for (const auto& operation : operations) {
      EXPECT_TRUE(group_[0]->wait(*operation, sync::Clock::now() + 30s));
      await_release(*operation);
      if (operation->status().ok()) continue;
      ++num_failed;
      EXPECT_NE(operation->status().message().find(reason), std::string::npos) << operation->status().message();
    }
    return num_failed;
  }

  const std::unique_ptr<transport::Network> network_ = GetParam().make();
  Engines engines_{transports_of(*network_, 2)};
  std::vector<std::unique_ptr<Communicator>> group_ = engines_.form("flooded");
};

INSTANTIATE_TEST_SUITE_P(Networks, FloodTest,
                         testing::Values(transport::kLoopback, transport::kRails, transport::kUcxSharedMemory,
                                         transport::kRings, transport::kRingsCopies),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(FloodTest, sends_beyond_the_allowance_wait_for_their_receives) {
  const Operations sends = start(300, send);
  EXPECT_LE(num_finished(sends), kAllowance.num_bytes / (kNumElements * sizeof(int32_t)));
  for (int i = 0; i < 300; ++i) receive(i, values(i));
  EXPECT_EQ(expect_ended(sends, ""), 0u);
}

TEST_P(FloodTest, more_messages_than_may_be_announced_wait_in_order) {
  constexpr int kNumMessages = kAllowance.num_messages + 1000;
  const Operations sends = start(kNumMessages, send_small);
  EXPECT_LE(num_finished(sends), kAllowance.num_messages);
  for (int i = 0; i < kNumMessages; ++i) receive(i, {i});
  EXPECT_EQ(expect_ended(sends, ""), 0u);
}

TEST_P(FloodTest, broadcasts_beyond_the_allowance_wait_for_the_other_rank) {
  const auto broadcast = [](int number) { return TestOperation::broadcast(values(number), 0, 30s); };
  const Operations broadcasts = start(300, broadcast);
  EXPECT_LE(num_finished(broadcasts), kAllowance.num_bytes / (kNumElements * sizeof(int32_t)));
  for (int i = 0; i < 300; ++i) {
    auto received = TestOperation::broadcast(values(-1), 0, 30s);
    ASSERT_TRUE(run(*group_[1], *received).ok()) << received->status().message();
    ASSERT_EQ(received->data, values(i)) << "broadcast " << i;
  }
  EXPECT_EQ(expect_ended(broadcasts, ""), 0u);
}

TEST_P(FloodTest, a_send_that_is_not_received_in_time_says_that_it_was_held_back) {
  const Operations sends = start(kAllowance.num_messages, send_small);
  auto late = send(0);
  late->timeout = 50ms;
  group_[0]->start(*late);
  ASSERT_TRUE(group_[0]->wait(*late, sync::Clock::now() + 30s));
  EXPECT_EQ(late->status().code(), ErrorCode::kTimeout);
  EXPECT_NE(late->status().message().find("Flow control holds messages back here: earlier ones of this group have not "
                                          "been received by rank 1 (limit: 4096 KiB or 16384 messages"),
            std::string::npos)
      << late->status().message();
  group_[1].reset();
  for (const auto& operation : sends) EXPECT_TRUE(group_[0]->wait(*operation, sync::Clock::now() + 30s));
  for (const auto& operation : sends) await_release(*operation);
  await_release(*late);
}

TEST_P(FloodTest, what_waits_ends_when_the_receiver_aborts) {
  const Operations sends = start(kAllowance.num_messages + 100, send_small);
  group_[1]->abort("it had enough");
  EXPECT_GE(expect_ended(sends, "rank 1 reports: it had enough"), 100u);
}

TEST_P(FloodTest, what_waits_ends_when_the_sender_aborts_and_what_was_sent_is_received) {
  const Operations sends = start(kAllowance.num_messages + 100, send_small);
  group_[0]->abort("it had enough");
  EXPECT_GE(expect_ended(sends, "it had enough"), 100u);
  for (int i = 0; i < static_cast<int>(kAllowance.num_messages); ++i) receive(i, {i});
  auto missing = TestOperation::receive(1, 0, 0);
  EXPECT_NE(run(*group_[1], *missing).message().find("rank 0 reports: it had enough"), std::string::npos)
      << missing->status().message();
}

TEST_P(FloodTest, what_waits_ends_when_the_receiver_destroys_the_group) {
  Operations sends = start(300, send);
  for (auto& each : start(kAllowance.num_messages, send_small)) sends.push_back(std::move(each));
  group_[1].reset();
  const size_t num_failed = expect_ended(sends, "");
  const bool tells =
      GetParam().make != transport::kUcxSharedMemory.make;  // UCX completes later refused payloads with success
  EXPECT_TRUE(!tells || num_failed > 0) << "sends whose payloads waited must fail";
}

// The first messages are dropped if no receiver holds them. Their sender learns of that, and does not wait for credit.
TEST_P(FloodTest, a_sender_that_goes_on_after_its_receiver_has_left_is_told) {
  const auto first = send_small(0);
  group_[0]->start(*first);
  receive(0, {0});
  group_[1].reset();
  const auto deadline = sync::Clock::now() + 10s;
  std::string why;
  for (int number = 1; why.empty() && sync::Clock::now() < deadline; ++number) {
    auto later = send_small(number);
    why = run(*group_[0], *later).message();
    await_release(*later);
  }
  EXPECT_NE(why.find("rank 1 has left the group"), std::string::npos) << why;
  const Operations sends = start(kAllowance.num_messages + 100, send_small);
  EXPECT_EQ(expect_ended(sends, "rank 1 has left the group"), sends.size());
  await_release(*first);
}

TEST_P(FloodTest, what_waits_for_credit_names_the_rank_that_left) {
  const Operations sends = start(kAllowance.num_messages + 100, send_small);
  group_[1].reset();
  EXPECT_GE(expect_ended(sends, "rank 1 has left the group"), 100u);
}

TEST_P(FloodTest, what_waits_ends_when_the_receiver_shuts_down) {
  if (GetParam().make == transport::kUcxSharedMemory.make)
    GTEST_SKIP() << "UCX does not notice a lost engine, and only processes are watched";
  const Operations sends = start(kAllowance.num_messages + 100, send_small);
  engines_[1].shut_down();
  expect_ended(sends, "");
}

TEST_P(FloodTest, other_groups_go_on) {
  const auto others = engines_.form("others");
  const Operations sends = start(kAllowance.num_messages + 100, send_small);
  on_all_ranks(2, [&](int rank) {
    auto operation = TestOperation::all_reduce({rank, 1}, 30s);
    EXPECT_TRUE(run(*others[static_cast<size_t>(rank)], *operation).ok()) << operation->status().message();
  });
  on_all_ranks(2, [&](int rank) {
    auto operation = TestOperation::all_reduce({rank, 1}, 30s);
    EXPECT_TRUE(run(*group_[static_cast<size_t>(rank)], *operation).ok()) << operation->status().message();
  });
  for (int i = 0; i < static_cast<int>(sends.size()); ++i) receive(i, {i});
  EXPECT_EQ(expect_ended(sends, ""), 0u);
}

class Listener final : public DeviceHook {
 public:
  void on_failed(const Status& reason) noexcept override { heard += reason.message(); }
  void on_rank_lost(int, const Status&) noexcept override {}
  Status fault() noexcept override { return Status(); }

  std::string heard;
};

// No rank of ours sends more than its credit; this test does.
TEST(HeedlessSenderTest, more_than_an_inbox_may_keep_ends_the_group) {
  static constexpr size_t kBlock = 1 << 20;
  transport::LoopbackFabric fabric({.largest_eager_num_bytes = kBlock, .kills = {}});
  Engines engines(loopback_transports(fabric, 2));
  const std::vector<PeerAddress> addresses = engines.make_addresses();
  const std::array group{engines.form("flooded", 0, addresses), engines.form("flooded", 1, addresses)};
  Listener listener;
  group[1]->set_device_hook(&listener);
  const std::vector<std::byte> block(kBlock);
  engines[0].exclusively([&] {
    const transport::PeerId peer = engines[0].meet(addresses[1]).value();
    transport::OperationHeader header{.key = addresses[1].key,
                                      .fingerprint = {.operation = transport::OperationKind::kPointToPoint},
                                      .source = 0,
                                      .destination = 1};
    for (; header.sequence <= messaging::Inbox::kMostUnexpectedBytes / kBlock; ++header.sequence) {
      (void)engines[0].messenger().transport().send(peer, header, {block.data(), block.size()}, transport::unattended);
    }
  });
  const auto told = TestOperation::all_reduce({1}, 30s);
  const std::string reason = "256 MiB have arrived without a matching receive, the latest from rank 0";
  EXPECT_NE(run(*group[0], *told).message().find(reason), std::string::npos) << told->status().message();
  const auto own = TestOperation::receive(1, 0, 0);
  EXPECT_EQ(run(*group[1], *own).code(), ErrorCode::kResourceExhausted);
  group[1]->set_device_hook(nullptr);
  EXPECT_NE(listener.heard.find(reason), std::string::npos) << listener.heard;
}

}  // namespace
}  // namespace axon::engine
