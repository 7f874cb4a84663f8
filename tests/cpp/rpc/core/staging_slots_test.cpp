// Tests whose turn it is to take a slot of host memory.
#include "rpc/core/one_sided/staging_slots.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "comes_true.hpp"
#include "rpc/core/devices.hpp"

namespace axon::rpc {
namespace {

class StagingSlotsTest : public testing::Test {
 protected:
  static constexpr size_t kNumShared = 8;

  // Keeps what it takes, and gives it back at once if it ends at once.
  class Waiting final : public StagingSlots::Waiter {
   public:
    Waiting(StagingSlotsTest& test, transport::PeerId peer) noexcept
        : Waiter(test.test_.pair.server_engine(), peer, test.test_.server_device), slots_(*test.slots_) {}

    bool take() {
      if (std::optional<Buffer> slot = slots_.take(*this)) held.push_back(*slot);
      return !held.empty();
    }
    void give_back() {
      const Buffer slot = held.back();
      held.pop_back();
      slots_.give_back(peer(), slot);
    }

    std::vector<Buffer> held;
    Status failure;
    bool ends_at_once = false;
    inline static size_t depth = 0;  // of the calls on the stack
    inline static size_t most_depth = 0;

   private:
    void on_slot() noexcept override {
      most_depth = std::max(most_depth, ++depth);
      EXPECT_TRUE(take());
      if (ends_at_once) give_back();
      --depth;
    }
    void on_no_slot(const Status& why) noexcept override { failure = why.clone(); }

    StagingSlots& slots_;
  };

  StagingSlotsTest() {
    std::vector<Buffer> all;
    for (size_t i = 0; i < kNumShared; ++i) {
      all.push_back({.data = memory_.data() + i * kSegmentNumBytes, .num_bytes = kSegmentNumBytes});
    }
    slots_.emplace(std::move(all), Owner());
  }
  ~StagingSlotsTest() override {
    test_.pair.server_engine().exclusively([&] { waiters_.clear(); });
    EXPECT_TRUE(comes_true([&] { return test_.server_device.is_idle(); }));  // the engine takes what it has made
  }

  Waiting& waiting(transport::PeerId peer) { return *waiters_.emplace_back(std::make_unique<Waiting>(*this, peer)); }
  // Calls it as the progress owner.
  template <typename Action>
  auto owned(Action action) {
    return test_.pair.server_engine().exclusively(action);
  }
  // A peer takes what it can. Returns how many of its waiters have a slot.
  size_t exhaust(transport::PeerId peer) {
    return owned([&] {
      size_t num_held = 0;
      for (size_t i = 0; i < 2 * kNumShared; ++i) num_held += waiting(peer).take() ? 1 : 0;
      return num_held;
    });
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(kNumShared * kSegmentNumBytes);
  std::optional<StagingSlots> slots_;  // longer than the engine
  Devices test_{{.mailbox_capacity = kRoom}, 1000};
  std::vector<std::unique_ptr<Waiting>> waiters_;
};

TEST_F(StagingSlotsTest, waiters_that_end_at_once_do_not_nest) {
  owned([&] {
    std::vector<Waiting*> holders;
    for (transport::PeerId peer = 0; peer < 2; ++peer) {
      for (size_t i = 0; i < StagingSlots::kMostPerPeer; ++i) holders.push_back(&waiting(peer));
    }
    for (Waiting* each : holders) ASSERT_TRUE(each->take());
    std::vector<Waiting*> others;
    for (size_t i = 0; i < 1000; ++i) {
      others.push_back(&waiting(0));
      others.back()->ends_at_once = true;
      EXPECT_FALSE(others.back()->take());
    }
    holders.front()->give_back();
    EXPECT_EQ(Waiting::most_depth, 1u);
    for (const Waiting* each : others) EXPECT_FALSE(each->linked());
  });
}

TEST_F(StagingSlotsTest, each_peer_gets_a_first_slot_and_no_more_than_its_share) {
  EXPECT_EQ(exhaust(0), StagingSlots::kMostPerPeer);
  EXPECT_EQ(exhaust(1), StagingSlots::kMostPerPeer);
  size_t num_slots = kNumShared;
  for (transport::PeerId peer = 2; peer < 6; ++peer) {  // whose first slots are allocated
    EXPECT_EQ(exhaust(peer), 0u);
    const auto num_held = [&] {
      return owned([&] {
        return std::ranges::count_if(waiters_,
                                     [&](const auto& each) { return each->peer() == peer && !each->held.empty(); });
      });
    };
    EXPECT_TRUE(comes_true([&] { return num_held() == 1; })) << "peer " << peer;
    num_slots += 1;
  }
  owned([&] {  // all that were allocated can be held
    for (const auto& each : waiters_) num_slots -= each->held.size();
    EXPECT_EQ(num_slots, 0u);
  });
}

TEST_F(StagingSlotsTest, waiters_of_a_peer_at_its_limit_let_others_pass) {
  exhaust(0);
  owned([&] {
    for (size_t i = 0; i < StagingSlots::kMostPerPeer; ++i) EXPECT_TRUE(waiting(1).take());
    Waiting& other = waiting(1);
    EXPECT_FALSE(other.take());
    waiters_[2 * kNumShared]->give_back();  // one of peer 1
    EXPECT_EQ(other.held.size(), 1u);
  });
}

TEST_F(StagingSlotsTest, shared_slots_go_to_peers_in_turn) {
  exhaust(0);
  exhaust(1);
  EXPECT_EQ(exhaust(2), 0u);
  EXPECT_TRUE(comes_true([&] { return owned([&] { return !waiters_[4 * kNumShared]->held.empty(); }); }));
  owned([&] {
    waiters_[0]->give_back();  // of peer 0, whose turn is after that of peer 2
    EXPECT_FALSE(waiters_[4 * kNumShared + 1]->held.empty());
    waiters_[1]->give_back();
    EXPECT_FALSE(waiters_[StagingSlots::kMostPerPeer]->held.empty());  // of peer 0
  });
}

TEST_F(StagingSlotsTest, a_failed_allocation_fails_those_that_wait_for_it) {
  test_.server_device.run_out_of_memory();
  exhaust(0);
  exhaust(1);
  Waiting& first = waiting(2);
  Waiting& second = waiting(2);
  owned([&] { EXPECT_FALSE(first.take() || second.take()); });
  for (Waiting* each : {&first, &second}) {
    EXPECT_TRUE(comes_true([&] { return owned([&] { return !each->failure.ok(); }); }));
    EXPECT_EQ(each->failure.code(), ErrorCode::kResourceExhausted);
    EXPECT_EQ(each->failure.message(), "cannot pin 4 MiB of host memory for a segment: the host is out of memory");
  }
  owned([&] {  // a slot that is given back before the next failure is taken
    Waiting& later = waiting(2);
    EXPECT_FALSE(later.take());
    waiters_[0]->give_back();
    EXPECT_EQ(later.held.size(), 1u);
  });
}

}  // namespace
}  // namespace axon::rpc
