// Tests the loopback's injected faults: each occurs at the chosen step, and identically in every run.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "transport/loopback/loopback.hpp"
#include "transport/node.hpp"

namespace axon::transport {
namespace {

// Two processes exchange twenty messages of all kinds, driven by one thread. Returns the order in which they arrived.
std::vector<uint32_t> order_of_arrival(const FaultPlan& plan) {
  SCOPED_TRACE(to_string(plan));
  LoopbackFabric fabric(plan);
  Node first(fabric.make_transport());
  Node second(fabric.make_transport());
  const PeerId peer = first.meet(second, true);
  for (uint32_t i = 0; i < 20; ++i) first.send(peer, pattern(i % 3 == 0 ? 10'000 : 100, i), i);
  EXPECT_TRUE(drive({&first, &second}, [&] { return second.num_complete() == 20 && first.all_sends_finished(); }));
  std::vector<uint32_t> order;
  for (const Arrival& arrival : second.arrivals) order.push_back(arrival.sequence());
  return order;
}

TEST(Loopback, keeps_order_without_faults) {
  std::vector<uint32_t> in_order(20);
  std::iota(in_order.begin(), in_order.end(), 0);
  EXPECT_EQ(order_of_arrival({}), in_order);
}

TEST(Loopback, a_seed_decides_the_order) {
  const auto plan = [](uint64_t seed) {
    return FaultPlan{.seed = seed, .pending = 0.3, .delay = 0.3, .reorder = 0.5, .kills = {}};
  };
  for (uint64_t seed = 0; seed < 10; ++seed) {
    EXPECT_EQ(order_of_arrival(plan(seed)), order_of_arrival(plan(seed)));
    EXPECT_NE(order_of_arrival(plan(seed)), order_of_arrival(plan(seed + 1)));
  }
}

TEST(Loopback, the_chosen_send_fails) {
  LoopbackFabric fabric({.failing_send = 3, .kills = {}});
  Node first(fabric.make_transport());
  Node second(fabric.make_transport());
  const PeerId peer = first.meet(second, true);
  for (int i = 0; i < 5; ++i) first.send(peer, pattern(8, 1));
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(first.sends[i].status.ok(), i != 2);
  EXPECT_TRUE(drive({&second}, [&] { return second.num_complete() == 4; }));
}

TEST(Loopback, a_full_mailbox_keeps_sends_pending) {
  LoopbackFabric fabric({.mailbox_capacity = 4, .kills = {}});
  Node first(fabric.make_transport());
  Node second(fabric.make_transport());
  const PeerId peer = first.meet(second, true);
  for (int i = 0; i < 10; ++i) first.send(peer, pattern(8, 1));
  EXPECT_TRUE(first.sends[3].finished());
  EXPECT_FALSE(first.sends[4].finished());
  EXPECT_TRUE(drive({&first, &second}, [&] { return second.num_complete() == 10 && first.all_sends_finished(); }));
}

TEST(Loopback, a_pending_send_reads_its_memory_late) {
  LoopbackFabric fabric({.pending = 1, .kills = {}});
  Node first(fabric.make_transport());
  Node second(fabric.make_transport());
  Transfer& send = first.send(first.meet(second, true), pattern(8, 1));
  std::ranges::copy(pattern(8, 2), send.bytes.begin());
  EXPECT_TRUE(drive({&first, &second}, [&] { return second.num_complete() == 1; }));
  EXPECT_EQ(second.arrivals.front().bytes(), pattern(8, 2));
}

// Two processes exchange messages until one has been killed, at each of its steps in turn.
TEST(Loopback, a_process_dies_at_any_of_its_steps) {
  const auto converse = [](LoopbackFabric& fabric) {
    auto victim = std::make_unique<Node>(fabric.make_transport());
    Node survivor(fabric.make_transport());
    const PeerId to_survivor = victim->meet(survivor, true);
    const PeerId to_victim = survivor.meet(*victim, true);
    for (uint32_t i = 0; i < 4; ++i) victim->send(to_survivor, pattern(i % 2 == 0 ? 10'000 : 100, i));
    for (uint32_t i = 0; i < 4; ++i) survivor.send(to_victim, pattern(i % 2 == 0 ? 10'000 : 100, i));
    const auto is_over = [&] {
      return !survivor.lost.empty() || (victim->num_complete() == 4 && survivor.num_complete() == 4);
    };
    EXPECT_TRUE(drive({victim.get(), &survivor}, is_over));
    EXPECT_EQ(survivor.lost.size(), fabric.is_dead(0) ? 1u : 0u);
    EXPECT_TRUE(victim->lost.empty());
    survivor.transport().flush(1000);
    const uint64_t num_steps = fabric.num_steps(0);
    victim.reset();
    return num_steps;
  };
  LoopbackFabric flawless;
  const uint64_t num_steps = converse(flawless);
  EXPECT_EQ(num_steps, 4u + 4u + 2u);  // its sends, its messages, and two fetches
  for (uint64_t step = 1; step <= num_steps; ++step) {
    SCOPED_TRACE(step);
    LoopbackFabric fabric({.kills = {{.process = 0, .step = step}}});
    EXPECT_LE(converse(fabric), step);
    EXPECT_TRUE(fabric.is_dead(0));
  }
}

TEST(Loopback, adding_a_dead_process_fails) {
  LoopbackFabric fabric;
  Node victim(fabric.make_transport());
  Node survivor(fabric.make_transport());
  fabric.kill(0);
  const PeerId peer = survivor.meet(victim, true);
  EXPECT_TRUE(drive({&survivor}, [&] { return survivor.lost == std::vector<PeerId>{peer}; }));
}

TEST(Loopback, refuses_what_is_no_address) {
  LoopbackFabric fabric;
  Node node(fabric.make_transport());
  const Bytes unknown_process(4, std::byte{9});
  EXPECT_FALSE(node.transport().add_peer(unknown_process, true).ok());
  EXPECT_FALSE(node.transport().add_peer({}, true).ok());
}

}  // namespace
}  // namespace axon::transport
