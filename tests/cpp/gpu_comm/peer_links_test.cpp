// The ranks' control messages without a GPU: no rank has an arena. device_group_test covers them with a GPU.
#include "gpu_comm/peer_links.hpp"

#include <gtest/gtest.h>

#include "base/interrupts.hpp"
#include "engine/engines.hpp"
#include "transport/loopback/loopback.hpp"

namespace axon::gpu_comm {
namespace {

using namespace std::chrono_literals;

class PeerLinksTest : public testing::Test {
 protected:
  static constexpr size_t kNumRanks = 3;

  PeerLinksTest() = default;
  explicit PeerLinksTest(std::vector<collectives::AlgorithmOverrides> overrides)
      : engines(engine::loopback_transports(fabric, kNumRanks), std::move(overrides)) {}

  void open(size_t rank, uint32_t round = 0) {
    links[rank] = PeerLinks::open(*communicators[rank], nullptr, {}, round);
  }
  void open_all() {
    for (size_t rank = 0; rank < kNumRanks; ++rank) open(rank);
  }
  void TearDown() override {
    for (const auto& opened : links) {
      if (opened != nullptr) opened->close();
    }
  }

  transport::LoopbackFabric fabric;
  engine::Engines engines{engine::loopback_transports(fabric, kNumRanks)};
  std::vector<std::unique_ptr<engine::Communicator>> communicators = engines.form("peer_links");
  std::array<std::shared_ptr<PeerLinks>, kNumRanks> links;
};

TEST_F(PeerLinksTest, no_rank_reaches_one_without_an_arena) {
  open_all();
  engine::on_all_ranks(kNumRanks, [&](int rank) {
    for (int peer = 0; peer < static_cast<int>(kNumRanks); ++peer) {
      Result<PeerAccess> access = links[static_cast<size_t>(rank)]->agree(peer, 30s);
      ASSERT_TRUE(access.ok()) << access.status().message();
      EXPECT_EQ(access.value(), PeerAccess::kNone);
    }
  });
}

TEST_F(PeerLinksTest, all_ranks_decide_alike) {
  open_all();
  engine::on_all_ranks(kNumRanks, [&](int rank) {
    for (int again = 0; again < 3; ++again) {
      Result<PeerAccess> access = links[static_cast<size_t>(rank)]->agree_all(30s);
      ASSERT_TRUE(access.ok()) << access.status().message();
      EXPECT_EQ(access.value(), PeerAccess::kNone);
    }
  });
  for (const auto& communicator : communicators) EXPECT_EQ(communicator->num_started(), 1u);  // one vote
}

// Each rank waits for the next one, and no rank for the previous one: an answer needs no thread of its rank.
TEST_F(PeerLinksTest, ranks_may_ask_in_a_circle) {
  open_all();
  engine::on_all_ranks(kNumRanks, [&](int rank) {
    Result<PeerAccess> access = links[static_cast<size_t>(rank)]->agree((rank + 1) % static_cast<int>(kNumRanks), 30s);
    EXPECT_TRUE(access.ok()) << access.status().message();
  });
}

TEST_F(PeerLinksTest, a_rank_that_uses_no_gpu_is_named) {
  open(0);
  Result<PeerAccess> access = links[0]->agree(2, 50ms);
  ASSERT_FALSE(access.ok());
  EXPECT_EQ(access.status().code(), ErrorCode::kTimeout);
  for (const char* part : {"Timed out", "rank 2 has not used a GPU in this group yet", "'peer_links'",
                           "CPU and CUDA tensors meet under tags other than 0"}) {
    EXPECT_NE(access.status().message().find(part), std::string::npos) << access.status().message();
  }
}

class UnlikePeerLinksTest : public PeerLinksTest {
 protected:
  UnlikePeerLinksTest() : PeerLinksTest({collectives::AlgorithmOverrides::parse("all_reduce=ll128").value()}) {}
};

// No rank has access to another one, and each compares itself with all of them nevertheless.
TEST_F(UnlikePeerLinksTest, ranks_whose_settings_name_different_kernels_are_told) {
  open_all();
  engine::on_all_ranks(kNumRanks, [&](int rank) {
    const auto expect_told = [](const Result<PeerAccess>& access) {
      ASSERT_FALSE(access.ok());
      EXPECT_EQ(access.status().code(), ErrorCode::kMismatch);
      EXPECT_NE(access.status().message().find("AXON_ALGO names other kernels"), std::string::npos)
          << access.status().message();
    };
    expect_told(links[static_cast<size_t>(rank)]->agree_all(30s));
    expect_told(links[static_cast<size_t>(rank)]->agree(rank == 0 ? 1 : 0, 30s));
  });
}

// When the late rank arrives, the rank that gave up connects to it.
TEST_F(PeerLinksTest, a_late_rank_is_met) {
  open(0);
  EXPECT_FALSE(links[0]->agree(1, 1ms).ok());
  open(1);
  Result<PeerAccess> access = links[0]->agree(1, 30s);
  EXPECT_TRUE(access.ok()) << access.status().message();
}

// Rank 1 did not use its GPU in the first round: messages that it received then are stale.
TEST_F(PeerLinksTest, a_round_reads_no_messages_of_an_earlier_one) {
  open(0);
  links[0]->close();
  open(1, 1);
  EXPECT_FALSE(links[1]->agree(0, 50ms).ok());
  open(0, 1);
  for (const int rank : {0, 1}) {
    Result<PeerAccess> access = links[static_cast<size_t>(rank)]->agree(1 - rank, 30s);
    EXPECT_TRUE(access.ok()) << access.status().message();
  }
}

TEST_F(PeerLinksTest, the_end_of_the_group_ends_the_wait) {
  open(0);
  std::thread asker([&] {
    Result<PeerAccess> access = links[0]->agree(1, 60s);
    ASSERT_FALSE(access.ok());
    EXPECT_EQ(access.status().code(), ErrorCode::kAborted) << access.status().message();
  });
  communicators[0]->abort("enough");
  asker.join();
}

// Interrupts as Ctrl-C does: the check acts as a handler that raises.
class Interrupted {
 public:
  Interrupted() {
    interrupts::set_check([]() noexcept { return true; });
  }
  ~Interrupted() { interrupts::set_check(nullptr); }
};

TEST_F(PeerLinksTest, an_interrupt_ends_the_wait_for_a_peer) {
  open(0);
  const auto began = sync::Clock::now();
  {
    const Interrupted handler;
    for (const bool of_all : {false, true}) {
      const Result<PeerAccess> access = of_all ? links[0]->agree_all(30s) : links[0]->agree(1, 30s);
      ASSERT_FALSE(access.ok()) << of_all;
      EXPECT_EQ(access.status().code(), ErrorCode::kCancelled) << access.status().message();
    }
  }
  EXPECT_LT(sync::Clock::now() - began, 5s);
  open(1);
  EXPECT_TRUE(links[0]->agree(1, 30s).ok());
}

// The vote continues: the next call takes part in the same one, and all ranks decide alike.
TEST_F(PeerLinksTest, an_interrupted_vote_can_be_awaited_again) {
  open_all();
  {
    const Interrupted handler;
    Result<PeerAccess> access = links[0]->agree_all(30s);
    ASSERT_FALSE(access.ok());
    EXPECT_EQ(access.status().code(), ErrorCode::kCancelled) << access.status().message();
  }
  engine::on_all_ranks(kNumRanks, [&](int rank) {
    Result<PeerAccess> access = links[static_cast<size_t>(rank)]->agree_all(30s);
    EXPECT_TRUE(access.ok()) << access.status().message();
  });
  for (const auto& communicator : communicators) EXPECT_EQ(communicator->num_started(), 1u);
}

// One thread votes, and another one waits for it: an interrupt ends both waits.
TEST_F(PeerLinksTest, an_interrupt_ends_the_wait_for_another_thread) {
  open(0);
  const auto began = sync::Clock::now();
  std::thread voter([&] { EXPECT_FALSE(links[0]->agree_all(30s).ok()); });
  const Interrupted handler;
  EXPECT_FALSE(links[0]->agree_all(30s).ok());
  voter.join();
  EXPECT_LT(sync::Clock::now() - began, 5s);
}

// Messages in flight keep what they need; the group's memory is freed with its last control message.
TEST_F(PeerLinksTest, may_go_before_its_messages) {
  open_all();
  std::weak_ptr<PeerLinks> gone = links[0];
  links[0]->close();
  links[0].reset();
  communicators[0].reset();
  const sync::Clock::time_point deadline = sync::Clock::now() + 10s;
  while (!gone.expired() && sync::Clock::now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(gone.expired());
}

}  // namespace
}  // namespace axon::gpu_comm
