// Tests the transport that carries messages through rings, on top of other transports.
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <fstream>

#include "transport/networks.hpp"
#include "transport/node.hpp"
#include "transport/rings/ring_transport.hpp"

namespace axon::transport {
namespace {

size_t num_mapped() {
  std::ifstream maps("/proc/self/maps");
  size_t num_found = 0;
  for (std::string line; std::getline(maps, line);) num_found += line.find("memfd:axon") != std::string::npos ? 1 : 0;
  return num_found;
}

class RingTransports : public testing::TestWithParam<RingUse> {
 protected:
  static constexpr size_t kLong = size_t{3} << 20;

  static bool has_ring(Node& node, PeerId peer) {
    return std::ranges::count(node.transport().lanes(peer).value(), "ring", &Lane::name) == 1;
  }
  bool run(const std::function<bool()>& condition) { return drive({&first, &second}, condition); }
  void warm_up() {
    first.send(to_second, pattern(8, 1));
    ASSERT_TRUE(run([&] { return second.num_complete() == 1 && first.all_sends_finished(); }));
    second.arrivals.clear();
    first.sends.clear();
  }
  static RingAddress address_of(Node& node) {
    RingAddress end;
    std::memcpy(&end, node.transport().address().last(sizeof end).data(), sizeof end);
    return end;
  }
  static RingAddress address_at(const RingDoorbell& doorbell, uint64_t key) {
    return {.key = key, .identity = 0, .pid = getpid(), .page = doorbell.page(), .pipe = doorbell.pipe()};
  }
  // Calls the second process's doorbell in the name of the process with this key.
  bool offer(uint64_t key, int descriptor, uint64_t number = 0) {
    const RingAddress caller = key == address_of(first).key ? address_of(first) : address_at(stranger, key);
    return offer(address_of(second), caller, descriptor, number);
  }
  static bool offer(const RingAddress& called, const RingAddress& caller, int descriptor, uint64_t number = 0) {
    return WakeUpPipe::open(called).value().call({.key = called.key,
                                                  .caller = caller,
                                                  .number = number,
                                                  .kind = RingCall::Kind::kRing,
                                                  .descriptor = descriptor});
  }
  RingWriter ring_to_second(uint64_t key) { return RingWriter::make(key, address_of(second).key).value(); }
  void offer_broken(uint64_t key) {
    RingWriter ring = ring_to_second(key);
    const SharedPages pages = SharedPages::open(getpid(), ring.descriptor(), sizeof(RingMemory)).value();
    auto& memory = *reinterpret_cast<RingMemory*>(pages.data());
    memory.entries[0].head.store({.kind = RingHead::Kind::kMessage, .num_bytes = 0xFFFFFF, .entry = 0});
    ASSERT_TRUE(offer(key, ring.descriptor()));
    ASSERT_TRUE(run([&] { return ring.is_read(); }));
  }

  std::unique_ptr<Network> below = kLoopback.make();
  Node first{with_rings(below->make_transport(), GetParam())};
  Node second{with_rings(below->make_transport(), GetParam())};
  PeerId to_second = first.meet(second, true);
  PeerId to_first = second.meet(first, true);
  RingDoorbell stranger = RingDoorbell::make(5).value();
};

INSTANTIATE_TEST_SUITE_P(Uses, RingTransports, testing::Values(RingUse::kAlways, RingUse::kCopies),
                         [](const auto& use) { return use.param == RingUse::kAlways ? "always" : "copies"; });

TEST_P(RingTransports, need_no_driving_of_a_sender_for_what_fits) {
  warm_up();
  first.send(to_second, pattern(RingMemory::kMostBytes, 1));
  EXPECT_TRUE(first.all_sends_finished());
  drive({&second}, [&] { return second.num_complete() == 1; });
  EXPECT_EQ(second.num_complete(), 1U);
}

TEST_P(RingTransports, are_done_with_nothing_that_is_not_in_the_ring) {
  const Transfer& sent = first.send(to_second, pattern(8, 1));
  EXPECT_FALSE(drive(
      {&first}, [&] { return sent.finished(); }, std::chrono::milliseconds(50)))
      << "before the other process has mapped the ring";
  ASSERT_TRUE(run([&] { return sent.finished(); }));
  EXPECT_TRUE(sent.status.ok());
  EXPECT_TRUE(drive({&second}, [&] { return second.num_complete() == 1; }));
}

TEST_P(RingTransports, say_how_messages_go) {
  const std::vector<Lane> lanes = first.transport().lanes(to_second).value();
  EXPECT_EQ(lanes.size(), GetParam() == RingUse::kAlways ? 2U : 1U);
  EXPECT_EQ(lanes.front(), (Lane{.name = "ring", .device = "memory", .pid = getpid()}));
  EXPECT_EQ(lanes.back().name, GetParam() == RingUse::kAlways ? "cma" : "ring");
}

TEST_P(RingTransports, keep_the_order_from_the_first_message_on) {
  constexpr uint32_t kNumMessages = 300;
  for (uint32_t sequence = 0; sequence < kNumMessages; ++sequence) {
    const size_t num_bytes = sequence % 50 == 7 ? kLong : sequence * 331 % (RingMemory::kMostBytes + 1);
    first.send(to_second, pattern(num_bytes, sequence), sequence);
  }
  ASSERT_TRUE(run([&] { return second.num_complete() == kNumMessages && first.all_sends_finished(); }));
  for (uint32_t sequence = 0; sequence < kNumMessages; ++sequence) {
    const Arrival& arrival = second.arrivals[sequence];
    ASSERT_EQ(arrival.sequence(), sequence);
    ASSERT_EQ(arrival.bytes(), pattern(arrival.num_bytes, sequence)) << sequence;
  }
}

// One process could verify that the other is on its host, but the other could not.
TEST_P(RingTransports, work_where_one_side_takes_the_other_for_another_host) {
  Node here(with_rings(below->make_transport(), GetParam()));
  Node unsure(with_rings(below->make_transport(), GetParam()));
  const PeerId to_unsure = here.meet(unsure, true);
  const PeerId to_here = unsure.meet(here, false);
  const auto both = [&](const std::function<bool()>& condition) { return drive({&here, &unsure}, condition); };
  EXPECT_FALSE(has_ring(unsure, to_here));
  for (const size_t num_bytes : {size_t{8}, size_t{5000}, kLong}) {
    here.send(to_unsure, pattern(num_bytes, 1));
    unsure.send(to_here, pattern(num_bytes, 2));
    ASSERT_TRUE(both([&] { return here.num_complete() == 1 && unsure.num_complete() == 1; })) << num_bytes;
    ASSERT_TRUE(both([&] { return here.all_sends_finished() && unsure.all_sends_finished(); })) << num_bytes;
    EXPECT_EQ(unsure.arrivals.front().bytes(), pattern(num_bytes, 1));
    EXPECT_EQ(here.arrivals.front().bytes(), pattern(num_bytes, 2));
    for (Node* node : {&here, &unsure}) {
      node->arrivals.clear();
      node->sends.clear();
    }
  }
  EXPECT_TRUE(has_ring(unsure, to_here)) << "reading the other process's ring proves that both share a host";
  unsure.transport().drop_peer(to_here);
  here.transport().drop_peer(to_unsure);
  EXPECT_TRUE(both([&] { return here.transport().arm() && unsure.transport().arm(); }));
}

TEST_P(RingTransports, wake_sleeping_peers) {
  warm_up();
  const auto is_readable = [&](int timeout_ms) {
    pollfd event{.fd = second.transport().event_fd(), .events = POLLIN, .revents = 0};
    return poll(&event, 1, timeout_ms) == 1;
  };
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(drive({&second}, [&] { return second.transport().arm(); }));
    EXPECT_FALSE(is_readable(0));
    first.send(to_second, pattern(8, 1));
    EXPECT_TRUE(is_readable(1000));
    ASSERT_TRUE(drive({&second}, [&] { return second.num_complete() == 1; }));
    second.arrivals.clear();
  }
  EXPECT_EQ(second.num_refused, 0U);
  first.send(to_second, pattern(8, 1));
  EXPECT_FALSE(second.transport().arm()) << "with a message in the ring";
}

TEST_P(RingTransports, do_not_sleep_while_messages_wait_for_room) {
  warm_up();
  while (first.send(to_second, pattern(RingMemory::kMostBytes, 1)).finished()) continue;
  EXPECT_FALSE(first.transport().arm());
  ASSERT_TRUE(run([&] { return first.all_sends_finished(); }));
}

TEST_P(RingTransports, refuse_offers_that_are_not_theirs) {
  const size_t num_before = num_mapped();
  RingWriter ring = ring_to_second(5);
  RingWriter to_another = RingWriter::make(5, address_of(first).key).value();
  RingWriter of_another = ring_to_second(address_of(first).key);
  const SharedPages shorter = SharedPages::make(4096).value();
  WakeUpPipe wake_up_pipe = WakeUpPipe::open(address_of(second)).value();
  EXPECT_TRUE(offer(0, ring.descriptor()));
  EXPECT_TRUE(offer(address_of(second).key, ring.descriptor()));
  EXPECT_TRUE(offer(5, shorter.descriptor()));
  EXPECT_TRUE(offer(5, to_another.descriptor()));
  EXPECT_TRUE(offer(5, of_another.descriptor(), 9));
  ASSERT_TRUE(run([&] { return second.num_refused == 5; }));
  EXPECT_EQ(wake_up_pipe.has_refused(9), WakeUpPipe::Refused::kYes);
  EXPECT_TRUE(offer(5, 1 << 20, 10));  // as from a process that has ended meanwhile
  ASSERT_TRUE(run([&] { return wake_up_pipe.has_refused(10) == WakeUpPipe::Refused::kYes; }));
  EXPECT_EQ(second.num_refused, 5U);
  EXPECT_FALSE(ring.is_read() || to_another.is_read() || of_another.is_read());
  for (int time = 0; time < 3; ++time) EXPECT_TRUE(offer(5, ring.descriptor()));
  ASSERT_TRUE(run([&] { return ring.is_read() && second.num_refused == 7; }))
      << "a ring is read once, however often it is offered";
  // This process's ring, the peers' rings, the shorter one and the pipe; the peer's: one ring and a pipe.
  EXPECT_EQ(num_mapped(), num_before + 7);
}

TEST_P(RingTransports, take_the_network_to_peers_that_refuse) {
  std::deque<RingDoorbell> doorbells;
  std::vector<RingWriter> rings;
  for (uint64_t key = 100; key < 100 + RingTransport::kMostLinks; ++key) {
    RingDoorbell& doorbell = doorbells.emplace_back(RingDoorbell::make(key).value());
    RingWriter& ring = rings.emplace_back(ring_to_second(key));
    ASSERT_TRUE(offer(address_of(second), address_at(doorbell, key), ring.descriptor()));
    ASSERT_TRUE(run([&] { return ring.is_read(); }));
  }
  Node third{with_rings(below->make_transport(), GetParam())};
  const PeerId to_full = third.meet(second, true);
  second.meet(third, true);
  third.send(to_full, pattern(8, 1), 1);
  third.send(to_full, pattern(kLong, 2), 2);
  third.send_rendezvous(to_full, pattern(9, 3));
  ASSERT_TRUE(drive({&second, &third}, [&] { return second.num_complete() == 3 && third.all_sends_finished(); }));
  for (const Transfer& send : third.sends) EXPECT_TRUE(send.status.ok()) << send.status.message();
  EXPECT_FALSE(has_ring(third, to_full));
}

TEST_P(RingTransports, count_the_links_that_are_used) {
  Node third{with_rings(below->make_transport(), GetParam())};
  for (size_t i = 0; i < 2 * RingTransport::kMostLinks; ++i) {
    Node other{with_rings(below->make_transport(), GetParam())};
    third.meet(other, true);
  }
  const PeerId to_second = third.meet(second, true);
  const PeerId back = second.meet(third, true);
  third.send(to_second, pattern(8, 1), 1);
  second.send(back, pattern(8, 2), 2);
  ASSERT_TRUE(drive({&second, &third}, [&] { return second.num_complete() == 1 && third.num_complete() == 1; }));
  EXPECT_TRUE(has_ring(third, to_second));
  EXPECT_TRUE(has_ring(second, back));
}

// Each process can access the other, except in one direction.
TEST_P(RingTransports, lose_peers_that_cannot_be_answered) {
  ASSERT_TRUE(offer(address_of(first).key, 1 << 20));
  ASSERT_TRUE(drive({&second}, [&] { return second.transport().progress() == 0; }));
  second.send(to_first, pattern(8, 1));
  ASSERT_TRUE(run([&] { return !second.lost.empty(); }));
  EXPECT_EQ(second.lost, std::vector{to_first});
  EXPECT_EQ(second.num_refused, 0U);
}

TEST_P(RingTransports, tell_waiting_peers_that_no_process_reads_any_more) {
  warm_up();
  second.policy = Node::Policy::kHold;
  const Transfer& offered = first.send(to_second, pattern(kLong, 1));
  while (first.send(to_second, pattern(RingMemory::kMostBytes, 1)).finished()) continue;
  second.close();
  ASSERT_TRUE(drive({&first}, [&] { return first.all_sends_finished(); }));
  EXPECT_EQ(offered.status.code(), ErrorCode::kPeerLost);
  EXPECT_EQ(first.lost, std::vector{to_second});
}

TEST_P(RingTransports, lose_a_peer_whose_ring_makes_no_sense) {
  offer_broken(address_of(first).key);
  ASSERT_TRUE(run([&] { return !second.lost.empty(); }));
  EXPECT_EQ(second.lost, std::vector{to_first});
  EXPECT_EQ(second.num_refused, 1U);
}

TEST_P(RingTransports, let_go_of_an_invalid_ring_of_an_unknown_peer) {
  const size_t num_before = num_mapped();
  offer_broken(5);
  EXPECT_TRUE(run([&] { return num_mapped() <= num_before + 1; }));  // its doorbell stays open
  EXPECT_TRUE(second.lost.empty());
  EXPECT_EQ(second.num_refused, 1U);
}

// Each case is the first message of a malicious writer.
TEST_P(RingTransports, believe_no_answer_to_what_was_not_offered) {
  using Kind = RingHead::Kind;
  for (const Kind kind : {Kind::kAck, Kind::kNack, Kind::kCts, Kind::kData, Kind::kRts}) {
    SCOPED_TRACE(static_cast<int>(kind));
    Node third{with_rings(below->make_transport(), GetParam())};
    RingDoorbell doorbell = RingDoorbell::make(77).value();
    const RingAddress called = address_of(third);
    RingWriter ring = RingWriter::make(77, called.key).value();
    ASSERT_TRUE(offer(called, address_at(doorbell, 77), ring.descriptor()));
    ASSERT_TRUE(drive({&third}, [&] { return ring.is_read(); }));
    const TransferHeader header{.number = uint64_t{1} << 32};
    const auto written = kind == Kind::kRts ? ring.write(kind, MessageHeader(), {}) : ring.write(kind, header, {});
    EXPECT_NE(written, RingWriter::Outcome::kFull);
    ASSERT_TRUE(drive({&third}, [&] { return third.num_refused == 1; }));
    EXPECT_TRUE(third.arrivals.empty());
  }
}

TEST_P(RingTransports, fail_what_is_under_way_with_a_dropped_peer) {
  warm_up();
  second.policy = Node::Policy::kHold;
  const Transfer& offered = first.send(to_second, pattern(kLong, 1));
  while (first.send(to_second, pattern(RingMemory::kMostBytes, 1)).finished()) continue;
  first.transport().drop_peer(to_second);
  ASSERT_TRUE(drive({&first}, [&] { return first.all_sends_finished(); }));
  EXPECT_EQ(offered.status.code(), ErrorCode::kPeerLost);
  EXPECT_EQ(first.sends.back().status.code(), ErrorCode::kPeerLost);
  ASSERT_TRUE(drive({&second}, [&] { return !second.arrivals.empty(); }));
  second.transport().drop_peer(to_first);
  second.transport().progress();
  second.fetch(second.arrivals.front());
  EXPECT_EQ(second.arrivals.front().fetch.status.code(), ErrorCode::kPeerLost);
}

TEST_P(RingTransports, let_go_of_the_memory_of_a_dropped_peer) {
  warm_up();
  const size_t num_before = num_mapped();
  first.transport().drop_peer(to_second);
  second.transport().drop_peer(to_first);
  // Per link, the ring and the mapping of the other's doorbell.
  EXPECT_TRUE(run([&] { return num_mapped() == num_before - 4; }));
}

TEST_P(RingTransports, have_so_many_rings_and_no_more) {
  constexpr size_t kNumPeers = 70;
  std::vector<std::unique_ptr<Node>> others;
  std::vector<PeerId> peers;
  std::vector<Node*> all{&first};
  for (size_t i = 0; i < kNumPeers; ++i) {
    others.push_back(std::make_unique<Node>(with_rings(below->make_transport())));
    all.push_back(others.back().get());
    peers.push_back(first.meet(*others.back(), true));
    others.back()->meet(first, true);
  }
  for (int round = 0; round < 3; ++round) {
    for (const PeerId peer : peers) first.send(peer, pattern(8, 1));
    for (const auto& other : others) other->send(0, pattern(8, 1));
    ASSERT_TRUE(drive(all, [&] {
      return first.num_complete() == kNumPeers &&
             std::ranges::all_of(others, [](const auto& other) { return other->num_complete() == 1; });
    }));
    first.arrivals.clear();
    for (const auto& other : others) other->arrivals.clear();
  }
  const auto num_rings = std::ranges::count_if(peers, [&](PeerId peer) { return has_ring(first, peer); });
  EXPECT_EQ(static_cast<size_t>(num_rings), RingTransport::kMostLinks);
}

TEST(RingUse, never_makes_one_in_either_direction) {
  const auto below = kLoopback.make();
  Node with(with_rings(below->make_transport()));
  Node without(with_rings(below->make_transport(), RingUse::kNever));
  const size_t num_before = num_mapped();
  const PeerId to_without = with.meet(without, true);
  const PeerId to_with = without.meet(with, true);
  for (int round = 0; round < 3; ++round) {
    with.send(to_without, pattern(8, 1));
    without.send(to_with, pattern(8, 1));
    const size_t num_rounds = static_cast<size_t>(round) + 1;
    ASSERT_TRUE(drive({&with, &without},
                      [&] { return with.num_complete() == num_rounds && without.num_complete() == num_rounds; }));
  }
  EXPECT_EQ(num_mapped(), num_before);
}

}  // namespace
}  // namespace axon::transport
