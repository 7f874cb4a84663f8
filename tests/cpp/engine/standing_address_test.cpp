// Tests groups whose members change: each instance is formed from the same standing addresses, with a number of its
// own.
#include "engine/standing_address.hpp"

#include <gtest/gtest.h>

#include <string>

#include "engine/engines.hpp"

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

class StandingAddressTest : public testing::TestWithParam<transport::NetworkKind> {
 protected:
  static constexpr size_t kEngines = 3;

  StandingAddressTest() {
    for (size_t i = 0; i < kEngines; ++i) {
      standing_.emplace_back(new StandingAddress(engines_[i].make_standing_address()));
      addresses_.push_back(standing_.back()->address());
    }
  }

  // Members are numbers of engines, in the order of their ranks.
  std::vector<PeerAddress> addresses_in(uint64_t number, const std::vector<size_t>& members) const {
    std::vector<PeerAddress> addresses;
    for (const size_t member : members) addresses.push_back(addresses_[member].in_instance(number));
    return addresses;
  }
  std::unique_ptr<Communicator> form(uint64_t number, const std::vector<size_t>& members, size_t rank) {
    const size_t member = members[rank];
    const OwnAddress own = standing_[member]->in_instance(number);
    auto formed = engines_[member].form({.name = "instance " + std::to_string(number),
                                         .rank = static_cast<int>(rank),
                                         .addresses = addresses_in(number, members)});
    EXPECT_TRUE(formed.ok()) << formed.status().message();
    return std::move(formed).value();
  }

  // Waits until engine 1 has received all of engine 0's messages; they arrive in order.
  void let_messages_arrive() {
    auto sent = TestOperation::send({1}, 1, 0);
    auto received = TestOperation::receive(1, 0, 0);
    EXPECT_TRUE(run(*earlier_[0], *sent).ok());
    EXPECT_TRUE(run(*earlier_[1], *received).ok());
  }

  void expect_barrier(const std::vector<Communicator*>& ranks) {
    on_all_ranks(ranks.size(), [&](int rank) {
      auto barrier = TestOperation::barrier(30s);
      EXPECT_TRUE(run(*ranks[static_cast<size_t>(rank)], *barrier).ok()) << barrier->status().message();
    });
  }

  const std::unique_ptr<transport::Network> network_ = GetParam().make();
  Engines engines_{transports_of(*network_, kEngines)};
  std::vector<std::unique_ptr<Communicator>> earlier_ = engines_.form("earlier");
  std::vector<std::unique_ptr<const StandingAddress>> standing_;
  std::vector<PeerAddress> addresses_;  // what the members know of each other
};

INSTANTIATE_TEST_SUITE_P(Networks, StandingAddressTest, testing::Values(transport::kLoopback, transport::kRings),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(StandingAddressTest, barrier_begins_before_another_member_knows_of_the_instance) {
  const auto first = form(7, {0, 1}, 0);
  auto barrier = TestOperation::barrier(30s);
  auto sent = TestOperation::send({5}, 1, 3);
  first->start(*barrier);
  EXPECT_TRUE(run(*first, *sent).ok());
  let_messages_arrive();
  EXPECT_FALSE(barrier->finished());
  const auto late = form(7, {0, 1}, 1);
  expect_barrier({late.get()});
  auto received = TestOperation::receive(1, 0, 3);
  EXPECT_TRUE(run(*late, *received).ok()) << received->status().message();
  EXPECT_EQ(received->data[0], 5);
  EXPECT_TRUE(first->wait(*barrier, sync::Clock::now() + 30s));
  EXPECT_TRUE(barrier->status().ok()) << barrier->status().message();
  await_release(*barrier);
  EXPECT_EQ(engines_[1].num_refused(), 0);
}

TEST_P(StandingAddressTest, abort_before_another_member_knows_of_the_instance_ends_its_first_collective) {
  form(7, {0, 1}, 0)->abort("enough");
  let_messages_arrive();
  const auto late = form(7, {0, 1}, 1);
  auto barrier = TestOperation::barrier(30s);
  EXPECT_EQ(run(*late, *barrier).code(), ErrorCode::kAborted);
  EXPECT_NE(barrier->status().message().find("rank 0 reports: enough"), std::string::npos)
      << barrier->status().message();
}

TEST_P(StandingAddressTest, instances_with_different_numbers_never_meet) {
  const std::vector<std::unique_ptr<Communicator>> groups = [&] {
    std::vector<std::unique_ptr<Communicator>> made;
    for (size_t rank = 0; rank < 2; ++rank) made.push_back(form(7 + rank, {0, 1}, rank));
    return made;
  }();
  on_all_ranks(2, [&](int rank) {
    auto barrier = TestOperation::barrier(100ms);
    EXPECT_EQ(run(*groups[static_cast<size_t>(rank)], *barrier).code(), ErrorCode::kTimeout);
  });
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(engines_[i].num_refused(), 0) << "they are kept";
}

TEST_P(StandingAddressTest, members_come_and_go_over_the_same_addresses) {
  std::vector<std::unique_ptr<Communicator>> former(kEngines);  // by engine
  uint64_t number = 0;
  for (const std::vector<size_t>& members :
       std::vector<std::vector<size_t>>{{0, 1, 2}, {2, 0}, {1}, {1, 2}, {0, 2, 1}, {0, 1, 2}}) {
    ++number;
    on_all_ranks(members.size(), [&](int rank) {
      const size_t own = members[static_cast<size_t>(rank)];
      if (former[own]) former[own]->leave("it forms the next instance");
      former[own] = form(number, members, static_cast<size_t>(rank));
      auto numbers = TestOperation::all_reduce({1, static_cast<int32_t>(own)}, 30s);
      EXPECT_TRUE(run(*former[own], *numbers).ok()) << number << ": " << numbers->status().message();
      int32_t sum = 0;
      for (const size_t member : members) sum += static_cast<int32_t>(member);
      EXPECT_EQ(numbers->data, (std::vector<int32_t>{static_cast<int32_t>(members.size()), sum})) << number;
    });
  }
  for (size_t i = 0; i < kEngines; ++i) EXPECT_EQ(engines_[i].num_refused(), 0) << i;
}

TEST_P(StandingAddressTest, instance_outlives_the_address_from_which_it_was_formed) {
  const auto first = form(7, {0, 1}, 0);
  const auto second = form(7, {0, 1}, 1);
  standing_.clear();
  expect_barrier({first.get(), second.get()});
}

TEST_P(StandingAddressTest, after_it_is_destroyed_no_further_instance_can_be_formed) {
  const auto first = form(7, {0, 1}, 0);
  auto early = TestOperation::send({5}, 1, 3);
  EXPECT_TRUE(run(*first, *early).ok());
  let_messages_arrive();
  standing_[1].reset();
  EXPECT_EQ(engines_[1].num_refused(), 0);
  const auto next = form(9, {0, 1}, 0);
  auto late = TestOperation::send({5}, 1, 3);
  run(*next, *late);
  let_messages_arrive();
  EXPECT_EQ(engines_[1].num_refused(), 1) << "no member can be sent this any more";
  for (const uint64_t number : {7, 9}) {
    const auto formed = engines_[1].form({.name = "late", .rank = 1, .addresses = addresses_in(number, {0, 1})});
    ASSERT_FALSE(formed.ok()) << number;
    EXPECT_NE(formed.status().message().find("the address given for rank 1"), std::string::npos)
        << formed.status().message();
  }
}

}  // namespace
}  // namespace axon::engine
