// Tests messages from outside the group: from a process that has not read its addresses, and replayed messages in the
// name of a member.
#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <string>

#include "engine/engines.hpp"

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

// A peer that reaches the engines' ports, and sends arbitrary messages.
class Stranger final : public transport::Receiver {
 public:
  explicit Stranger(transport::LoopbackFabric& fabric) : transport_(fabric.make_transport()) {
    transport_->set_receiver(*this);
  }

  void send(const PeerAddress& peer_address, const transport::MessageHeader& header) {
    if (peer_ == nullptr)
      peer_ = std::make_unique<transport::PeerId>(transport_->add_peer(peer_address.transport_address, true).value());
    transport::Completion completion{.done = [](transport::Completion&, Status) noexcept {}};
    EXPECT_TRUE(transport_->send(*peer_, header, {}, completion).has_value());
  }

 private:
  void on_message(const transport::MessageHeader&, const transport::Payload&) noexcept override {}
  void on_peer_lost(transport::PeerId, Status) noexcept override {}

  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<transport::PeerId> peer_;
};

class ForeignTest : public testing::Test {
 protected:
  void expect_group_works() {
    on_all_ranks(2, [&](int rank) {
      auto operation = TestOperation::all_reduce({rank, 1}, 30s);
      ASSERT_TRUE(run(*group_[static_cast<size_t>(rank)], *operation).ok()) << operation->status().message();
      EXPECT_EQ(operation->data, (std::vector<int32_t>{1, 2}));
    });
  }
  void expect_refused(uint64_t count) {
    const sync::Clock::time_point deadline = sync::Clock::now() + 10s;
    while (engines_[0].num_refused() < count && sync::Clock::now() < deadline) std::this_thread::yield();
    EXPECT_EQ(engines_[0].num_refused(), count);
  }

  transport::LoopbackFabric fabric_{{.mailbox_capacity = 8192, .kills = {}}};
  Engines engines_{loopback_transports(fabric_, 2)};
  std::vector<PeerAddress> addresses_ = engines_.make_addresses();
  std::vector<std::unique_ptr<Communicator>> group_;
  Stranger stranger_{fabric_};
};

TEST_F(ForeignTest, strangers_bytes_are_refused_before_and_after_a_group_is_formed) {
  static constexpr int kMany = 5000;  // more than are kept for one member
  std::mt19937_64 random(1);
  const auto flood = [&] {
    testing::internal::CaptureStderr();
    for (int i = 0; i < kMany; ++i) {
      std::array<uint64_t, sizeof(transport::MessageHeader) / 8> noise;
      for (uint64_t& word : noise) word = random();
      stranger_.send(addresses_[0], std::bit_cast<transport::MessageHeader>(noise));
    }
  };
  flood();
  expect_refused(kMany);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("not from a member of a group"), std::string::npos);
  for (int rank = 0; rank < 2; ++rank) group_.push_back(engines_.form("group", rank, addresses_));
  expect_group_works();
  flood();
  expect_refused(2 * kMany);
  testing::internal::GetCapturedStderr();
  expect_group_works();
}

TEST_F(ForeignTest, repeated_messages_of_members_are_refused) {
  for (int rank = 0; rank < 2; ++rank) group_.push_back(engines_.form("group", rank, addresses_));
  expect_group_works();
  auto sent = TestOperation::send({7}, 0, 3);
  group_[1]->start(*sent);
  auto received = TestOperation::receive(1, 1, 3);
  EXPECT_TRUE(run(*group_[0], *received).ok());
  EXPECT_TRUE(group_[1]->wait(*sent, sync::Clock::now() + 10s));
  await_release(*sent);
  transport::OperationHeader header{
      .key = addresses_[0].key, .fingerprint = received->fingerprint(0), .source = 1, .slot = 3};
  stranger_.send(addresses_[0], header);
  auto again = TestOperation::all_reduce({1, 1}, 30s);
  header.sequence = 1;
  header.slot = 0;
  header.fingerprint = again->fingerprint(1);
  stranger_.send(addresses_[0], header);
  again->released.store(true);  // the operation is never started
  expect_refused(2);
  expect_group_works();
}

TEST_F(ForeignTest, address_of_another_process_is_not_taken_for_the_own) {
  std::swap(addresses_[0], addresses_[1]);
  auto formed = engines_[0].form({.name = "group", .rank = 0, .addresses = addresses_});
  ASSERT_FALSE(formed.ok());
  EXPECT_NE(formed.status().message().find("the address given for rank 0"), std::string::npos)
      << formed.status().message();
}

}  // namespace
}  // namespace axon::engine
