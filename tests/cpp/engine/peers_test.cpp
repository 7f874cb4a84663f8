// Tests which processes an engine knows once it has lost them.
#include "engine/peers.hpp"

#include <gtest/gtest.h>

#include "transport/networks.hpp"

namespace axon::engine {
namespace {

class PeersTest : public testing::Test {
 protected:
  const std::unique_ptr<transport::Network> network_ = transport::kLoopback.make();
  const std::unique_ptr<transport::Transport> own_transport_ = network_->make_transport();
  const std::unique_ptr<transport::Transport> other_transport_ = network_->make_transport();
  Peers peers_{*own_transport_, 1};
};

TEST_F(PeersTest, a_lost_process_of_another_host_may_be_met_again) {
  const Peers others(*other_transport_, 2);
  const PeerAddress address = others.own_address();
  const transport::PeerId before = peers_.add(address).value();
  EXPECT_EQ(peers_.find(address.process), before);
  EXPECT_TRUE(peers_.check_room_for({&address, 1}).ok());
  peers_.note_loss(before);
  EXPECT_EQ(peers_.find(address.process), std::nullopt);
  EXPECT_EQ(peers_.num_known(), 0u);
  const transport::PeerId after = peers_.add(address).value();
  EXPECT_NE(after, before);
  EXPECT_EQ(peers_.find(address.process), after);
}

// Its end is certain, and nothing can reach it any more.
TEST_F(PeersTest, a_lost_process_of_this_host_stays_lost) {
  const Peers others(*other_transport_, 1);
  PeerAddress address = others.own_address();
  address.pid += 1;  // not this process
  const transport::PeerId peer = peers_.add(address).value();
  ASSERT_TRUE(peers_.is_neighbour(peer));
  peers_.note_loss(peer);
  EXPECT_EQ(peers_.find(address.process), peer);
}

TEST_F(PeersTest, each_of_many_processes_is_found) {
  const Peers others(*other_transport_, 2);
  PeerAddress address = others.own_address();
  const auto process_of = [](uint64_t i) { return Peers::ProcessId{i / 2 * 16, i}; };  // pairs with one hash
  constexpr uint64_t kMany = 300;
  for (uint64_t i = 0; i < kMany; ++i) {
    address.process = process_of(i);
    EXPECT_EQ(peers_.find(address.process), std::nullopt);
    EXPECT_EQ(peers_.add(address).value(), i);
  }
  peers_.note_loss(17);
  peers_.note_loss(17);
  EXPECT_EQ(peers_.num_known(), kMany - 1);
  for (uint64_t i = 0; i < kMany; ++i) {
    EXPECT_EQ(peers_.find(process_of(i)), i == 17 ? std::nullopt : std::optional(static_cast<transport::PeerId>(i)));
  }
  EXPECT_EQ(peers_.find(process_of(kMany)), std::nullopt);
}

}  // namespace
}  // namespace axon::engine
