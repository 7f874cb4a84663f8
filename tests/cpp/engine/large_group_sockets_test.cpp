// Tests a group of 40 ranks, each on a host of its own, over TCP. Ranks connect when they exchange messages, and all of
// them hear of a rank that ends.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "comes_true.hpp"
#include "engine/engines.hpp"
#include "transport/sockets/socket_transport.hpp"

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

constexpr size_t kNumRanks = 40;
constexpr auto kTimeout = 100s;

class LargeGroupSockets : public testing::Test {
 protected:
  LargeGroupSockets() {
    const std::string devices[] = {"lo"};
    std::vector<std::unique_ptr<transport::Transport>> transports;
    std::vector<uint64_t> hosts;
    for (size_t rank = 0; rank < kNumRanks; ++rank) {
      auto opened = transport::SocketTransport::open(devices);
      sockets_.push_back(opened.value().get());
      transports.push_back(std::move(opened).value());
      hosts.push_back(1000 + rank);
    }
    engines_.emplace(std::move(transports), std::vector<collectives::AlgorithmOverrides>(), hosts);
    group_ = engines_->form("large");
  }

  // Returns to how many ranks a rank is connected.
  size_t num_connections(size_t rank) {
    return (*engines_)[rank].exclusively([&] {
      size_t num_connected = 0;
      for (transport::PeerId peer = 0; peer < kNumRanks; ++peer)
        num_connected += sockets_[rank]->num_open_rails(peer) == 0 ? 0 : 1;
      return num_connected;
    });
  }

  std::vector<std::unique_ptr<TestOperation>> start(size_t without = kNumRanks) {
    std::vector<std::unique_ptr<TestOperation>> operations;
    for (size_t rank = 0; rank < kNumRanks; ++rank) {
      operations.push_back(TestOperation::all_reduce({1, static_cast<int32_t>(rank)}, kTimeout));
      if (rank == without) {
        operations.back()->released = true;
      } else {
        group_[rank]->start(*operations.back());
      }
    }
    return operations;
  }

  void expect_failures(const std::vector<std::unique_ptr<TestOperation>>& operations, size_t culprit,
                       const std::string& text) {
    for (size_t rank = 0; rank < kNumRanks; ++rank) {
      if (rank == culprit) continue;
      ASSERT_TRUE(group_[rank]->wait(*operations[rank], sync::Clock::now() + kTimeout)) << rank;
      const std::string message = operations[rank]->status().message();
      EXPECT_NE(message.find(text), std::string::npos) << rank << ": " << message;
      await_release(*operations[rank]);
    }
  }

  std::vector<transport::SocketTransport*> sockets_;
  std::optional<Engines> engines_;
  std::vector<std::unique_ptr<Communicator>> group_;
};

TEST_F(LargeGroupSockets, ranks_connect_to_those_with_which_they_exchange_messages) {
  for (size_t rank = 0; rank < kNumRanks; ++rank) {
    EXPECT_TRUE(comes_true([&] { return num_connections(rank) == 2; })) << rank << ": " << num_connections(rank);
  }
  for (int i = 0; i < 2; ++i) {
    const auto operations = start();
    for (size_t rank = 0; rank < kNumRanks; ++rank) {
      ASSERT_TRUE(group_[rank]->wait(*operations[rank], sync::Clock::now() + kTimeout));
      ASSERT_TRUE(operations[rank]->status().ok()) << operations[rank]->status().message();
      EXPECT_EQ(operations[rank]->data, (std::vector<int32_t>{kNumRanks, kNumRanks * (kNumRanks - 1) / 2}));
      await_release(*operations[rank]);
    }
  }
  for (size_t rank = 0; rank < kNumRanks; ++rank) EXPECT_LT(num_connections(rank), kNumRanks / 2);
}

TEST_F(LargeGroupSockets, rank_that_ends_is_named_on_all_ranks) {
  constexpr size_t kCulprit = 21;
  const auto operations = start(kCulprit);
  group_[kCulprit].reset();
  (*engines_)[kCulprit].shut_down();
  expect_failures(operations, kCulprit, "rank 21 is gone");
}

// No rank is connected to it but the two next to it.
TEST_F(LargeGroupSockets, rank_that_ended_before_is_named_on_all_ranks) {
  constexpr size_t kCulprit = 13;
  group_[kCulprit].reset();
  (*engines_)[kCulprit].shut_down();
  expect_failures(start(kCulprit), kCulprit, "rank 13 is gone");
}

TEST_F(LargeGroupSockets, receives_from_a_rank_that_ended_before_fail) {
  constexpr int kCulprit = 30;
  group_[kCulprit].reset();
  (*engines_)[kCulprit].shut_down();
  const auto receive = TestOperation::receive(1, kCulprit, 7, kTimeout);
  const std::string message = run(*group_[2], *receive).message();
  EXPECT_NE(message.find("rank 30 is gone"), std::string::npos) << message;
}

}  // namespace
}  // namespace axon::engine
