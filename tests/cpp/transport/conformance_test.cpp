// Checks the contract of transport/transport.hpp on every transport.
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "transport/networks.hpp"
#include "transport/node.hpp"

namespace axon::transport {
namespace {

constexpr size_t kLarge = size_t{300} << 10;  // larger than any transport's eager limit, so it waits at the sender

class TransportConformance : public testing::TestWithParam<NetworkKind> {
 protected:
  PeerId to_second() const noexcept { return second_to_first; }
  PeerId to_first() const noexcept { return first_to_second; }
  bool run(const std::function<bool()>& condition) { return drive({&first, &second}, condition); }

  std::unique_ptr<Network> network = GetParam().make();
  Node first{network->make_transport()};
  Node second{network->make_transport()};
  const PeerId second_to_first = first.meet(second, network->same_host());
  const PeerId first_to_second = second.meet(first, network->same_host());
};

INSTANTIATE_TEST_SUITE_P(All, TransportConformance,
                         testing::Values(kLoopback, kLoopbackWithFaults, kUcxSharedMemory, kUcxTcp, kRails,
                                         kRailsWithFaults, kRailsTcp, kSockets, kSocketsAndRails, kPreferred, kRings,
                                         kRingsCopies),
                         [](const auto& kind) { return std::string(kind.param.name); });

TEST_P(TransportConformance, delivers_every_size_exactly) {
  std::vector<size_t> sizes{
      0, 1, 7, 8, 51, 52, 53, 92, 93, 255, 4096, 16384, 65537, (size_t{1} << 20) + 1, size_t{16} << 20};
  // Limits of one fragment and of eager sends.
  for (const size_t threshold : {size_t{8000}, size_t{8192}, size_t{65536}}) {
    for (size_t num_bytes = threshold - 150; num_bytes < threshold + 150; ++num_bytes) sizes.push_back(num_bytes);
  }
  const PeerId peer = to_second();
  for (const size_t num_bytes : sizes) {
    const Bytes sent = pattern(num_bytes, 3);
    const Transfer& transfer = first.send(peer, sent);
    ASSERT_TRUE(run([&] { return transfer.finished() && second.num_complete() == 1; })) << num_bytes << " bytes";
    EXPECT_TRUE(transfer.status.ok()) << transfer.status.message();
    EXPECT_EQ(second.arrivals.front().bytes(), sent) << num_bytes << " bytes";
    second.arrivals.clear();
    first.sends.clear();
  }
}

TEST_P(TransportConformance, names_each_lane_to_a_peer_once) {
  const PeerId peer = to_second();
  auto lanes = first.transport().lanes(peer);  // before any message has been sent
  ASSERT_TRUE(lanes.ok()) << lanes.status().message();
  ASSERT_FALSE(lanes.value().empty());
  for (const Lane& lane : lanes.value()) {
    EXPECT_FALSE(lane.name.empty());
    EXPECT_EQ(std::ranges::count(lanes.value(), lane), 1) << lane.name;
  }
}

TEST_P(TransportConformance, headers_arrive_as_they_were_sent) {
  const PeerId peer = to_second();
  const OperationHeader header{.key = UINT64_MAX - 1,
                               .fingerprint = {.operation = OperationKind::kAllReduce,
                                               .dtype = DataType::kBFloat16,
                                               .reduction = Reduction::kPremulSum,
                                               .algorithm = 9,
                                               .root = -1,
                                               .num_elements = UINT64_MAX},
                               .source = 3,
                               .destination = 4,
                               .sequence = UINT32_MAX,
                               .slot = 5};
  Transfer transfer;
  if (auto sent = first.transport().send(peer, header, {}, transfer)) transfer.tell(std::move(*sent));
  ASSERT_TRUE(run([&] { return second.num_complete() == 1 && transfer.finished(); }));
  EXPECT_EQ(std::memcmp(&second.arrivals.front().header, &header, sizeof header), 0);
}

// Each side sends and receives in its own thread.
TEST_P(TransportConformance, ten_thousand_messages_each_way_by_two_threads) {
  constexpr uint32_t kNumMessages = 10'000;
  const PeerId peers[] = {to_second(), to_first()};
  std::atomic<int> num_done{0};
  const auto converse = [&](Node& node, PeerId peer) {
    const auto size_of_message = [](uint32_t sequence) { return sequence % 100 == 99 ? 20'000 : sequence % 300; };
    const auto is_done = [&] { return node.all_sends_finished() && node.num_complete() == kNumMessages; };
    for (uint32_t sequence = 0; sequence < kNumMessages; ++sequence) {
      node.send(peer, pattern(size_of_message(sequence), sequence), sequence);
      if (sequence % 8 == 0) node.transport().progress();
    }
    EXPECT_TRUE(drive({&node}, is_done, std::chrono::seconds(100)));
    ++num_done;
    EXPECT_TRUE(drive({&node}, [&] { return num_done == 2; }));
    std::vector<bool> seen(kNumMessages);
    for (const Arrival& arrival : node.arrivals) {
      const uint32_t sequence = arrival.sequence();
      EXPECT_FALSE(seen[sequence]) << "message " << sequence << " arrived twice";
      seen[sequence] = true;
      EXPECT_EQ(arrival.bytes(), pattern(size_of_message(sequence), sequence)) << "message " << sequence;
    }
  };
  std::jthread other([&] { converse(second, peers[1]); });
  converse(first, peers[0]);
}

TEST_P(TransportConformance, sends_to_its_own_process) {
  const PeerId self = first.meet(first, true);
  for (const size_t num_bytes : {size_t{0}, size_t{8}, size_t{4000}, kLarge}) {
    first.send(self, pattern(num_bytes, 1));
    ASSERT_TRUE(run([&] { return first.all_sends_finished() && first.num_complete() == 1; })) << num_bytes;
    EXPECT_TRUE(first.sends.back().status.ok());
    EXPECT_EQ(first.arrivals.front().bytes(), pattern(num_bytes, 1));
    first.arrivals.clear();
  }
}

TEST_P(TransportConformance, sends_from_within_on_message) {
  const PeerId forth = to_second();
  const PeerId back = to_first();
  second.on_arrival = [&](const Arrival& arrival) { second.send(back, pattern(arrival.num_bytes, 5)); };
  for (const size_t num_bytes : {size_t{8}, size_t{4000}, kLarge}) first.send(forth, pattern(num_bytes, 1));
  ASSERT_TRUE(run([&] { return first.num_complete() == 3 && second.num_complete() == 3; }));
  for (const Arrival& arrival : first.arrivals) EXPECT_EQ(arrival.bytes(), pattern(arrival.num_bytes, 5));
}

TEST_P(TransportConformance, fetches_later_and_out_of_order) {
  constexpr uint32_t kNumMessages = 16;
  const PeerId peer = to_second();
  second.policy = Node::Policy::kHold;
  for (uint32_t i = 0; i < kNumMessages; ++i) first.send(peer, pattern(kLarge + i, i), i);
  ASSERT_TRUE(run([&] { return second.arrivals.size() == kNumMessages; }));
  for (const Transfer& send : first.sends) EXPECT_FALSE(send.finished());
  for (size_t i = 0; i < kNumMessages; ++i) second.fetch(second.arrivals[(i * 7 + 3) % kNumMessages]);
  ASSERT_TRUE(run([&] { return second.num_complete() == kNumMessages && first.all_sends_finished(); }));
  for (const Arrival& arrival : second.arrivals) {
    EXPECT_TRUE(arrival.fetch.status.ok());
    EXPECT_EQ(arrival.bytes(), pattern(arrival.num_bytes, arrival.sequence()));
  }
}

TEST_P(TransportConformance, messages_overtake_one_that_waits) {
  const PeerId peer = to_second();
  second.policy = Node::Policy::kHold;
  const Transfer& waiting = first.send(peer, pattern(kLarge, 1), 1);
  ASSERT_TRUE(run([&] { return second.arrivals.size() == 1; }));
  for (uint32_t i = 0; i < 1000; ++i) first.send(peer, pattern(i % 5000, i), 2);
  ASSERT_TRUE(run([&] { return second.num_complete() == 1000; }));
  EXPECT_FALSE(waiting.finished());
  second.fetch(second.arrivals.front());
  ASSERT_TRUE(run([&] { return first.all_sends_finished() && second.num_complete() == 1001; }));
  EXPECT_EQ(second.arrivals.front().bytes(), pattern(kLarge, 1));
}

TEST_P(TransportConformance, refusing_on_arrival_fails_the_send_with_the_reason) {
  const PeerId peer = to_second();
  second.policy = Node::Policy::kRefuse;
  const Transfer& refused = first.send(peer, pattern(kLarge, 1));
  ASSERT_TRUE(run([&] { return refused.finished(); }));
  EXPECT_EQ(refused.status.code(), ErrorCode::kMismatch);
  EXPECT_EQ(refused.status.message(), second.reason.message());
  second.policy = Node::Policy::kFetch;
  const Transfer& fetched = first.send(peer, pattern(kLarge, 2));
  ASSERT_TRUE(run([&] { return fetched.finished() && second.num_complete() == 1; }));
  EXPECT_TRUE(fetched.status.ok());
}

TEST_P(TransportConformance, refusing_later_fails_the_send_with_the_reason) {
  const PeerId peer = to_second();
  second.policy = Node::Policy::kHold;
  const Status reasons[] = {{ErrorCode::kMismatch, "of another size"},
                            {ErrorCode::kResourceExhausted, "no room"},
                            {ErrorCode::kMismatch, std::string(510, 'x') + "\u00e9 and what does not fit"}};
  for (const Status& reason : reasons) {
    const Transfer& refused = first.send(peer, pattern(kLarge, 1));
    ASSERT_TRUE(run([&] { return second.arrivals.size() == 1; }));
    EXPECT_FALSE(refused.finished());
    second.transport().refuse(second.arrivals.front().rendezvous, reason);
    ASSERT_TRUE(run([&] { return refused.finished(); }));
    const bool is_mismatch = reason.code() == ErrorCode::kMismatch;
    EXPECT_EQ(refused.status.code(), is_mismatch ? ErrorCode::kMismatch : ErrorCode::kAborted);
    EXPECT_EQ(refused.status.message(), reason.message().substr(0, 510));
    second.arrivals.clear();
    first.sends.clear();
  }
}

TEST_P(TransportConformance, refusing_without_a_reason_ends_the_send) {
  const PeerId peer = to_second();
  second.policy = Node::Policy::kHold;
  const Transfer& refused = first.send(peer, pattern(kLarge, 1));
  ASSERT_TRUE(run([&] { return second.arrivals.size() == 1; }));
  second.transport().refuse(second.arrivals.front().rendezvous, Status());
  ASSERT_TRUE(run([&] { return refused.finished(); }));
}

// A payload waits for its fetch however short it is.
TEST_P(TransportConformance, what_is_offered_stays_with_its_sender_until_it_is_refused) {
  const PeerId peer = to_second();
  second.policy = Node::Policy::kHold;
  for (const size_t num_bytes : {size_t{1}, size_t{100}, size_t{4000}}) {
    const Transfer& offered = first.send_rendezvous(peer, pattern(num_bytes, 1));
    first.send(peer, pattern(8, 2));
    ASSERT_TRUE(run([&] { return second.arrivals.size() == 2; })) << num_bytes;
    const auto is_offer = [](const Arrival& arrival) { return arrival.rendezvous != nullptr; };
    const auto arrival = std::ranges::find_if(second.arrivals, is_offer);
    ASSERT_NE(arrival, second.arrivals.end()) << num_bytes;
    EXPECT_EQ(arrival->num_bytes, num_bytes);
    EXPECT_FALSE(offered.finished());
    second.transport().refuse(arrival->rendezvous, Status());
    ASSERT_TRUE(run([&] { return first.all_sends_finished(); })) << num_bytes;
    second.arrivals.clear();
    first.sends.clear();
  }
}

TEST_P(TransportConformance, what_is_offered_may_be_fetched) {
  const PeerId peer = to_second();
  const Transfer& offered = first.send_rendezvous(peer, pattern(10, 1));
  ASSERT_TRUE(run([&] { return offered.finished() && second.num_complete() == 1; }));
  EXPECT_TRUE(offered.status.ok()) << offered.status.message();
  EXPECT_EQ(second.arrivals.front().bytes(), pattern(10, 1));
}

TEST_P(TransportConformance, event_descriptor_wakes_a_sleeper) {
  const PeerId peer = to_second();
  first.send(peer, pattern(8, 0));  // connects
  ASSERT_TRUE(run([&] { return second.num_complete() == 1 && first.all_sends_finished(); }));
  for (size_t round = 0; round < 20; ++round) {
    std::atomic<bool> asleep{false};
    std::jthread sleeper([&] {
      while (!second.transport().arm()) second.transport().progress();
      asleep = true;
      asleep.notify_one();
      pollfd set{.fd = second.transport().event_fd(), .events = POLLIN, .revents = 0};
      EXPECT_EQ(poll(&set, 1, 10'000), 1) << "nothing woke it";
    });
    asleep.wait(false);
    const size_t num_before = second.num_complete();
    first.send(peer, pattern(round % 2 == 0 ? 8 : kLarge, 1));
    drive({&first}, [&] { return first.sends.back().finished(); }, std::chrono::milliseconds(5));
    sleeper.join();
    ASSERT_TRUE(run([&] { return second.num_complete() == num_before + 1 && first.all_sends_finished(); }));
  }
}

// A thread that has armed the descriptor must wake even if another thread has made progress before or during its sleep.
TEST_P(TransportConformance, event_descriptor_wakes_a_sleeper_though_progress_was_made_since_it_armed) {
  const PeerId peer = to_second();
  first.send(peer, pattern(8, 0));
  ASSERT_TRUE(run([&] { return second.num_complete() == 1 && first.all_sends_finished(); }));
  for (size_t round = 0; round < 20; ++round) {
    while (!second.transport().arm()) second.transport().progress();
    const size_t num_before = second.num_complete();
    first.send(peer, pattern(8, 1));
    ASSERT_TRUE(run([&] { return second.num_complete() == num_before + 1 && first.all_sends_finished(); }));
    first.send(peer, pattern(8, 2));
    drive({&first}, [&] { return first.sends.back().finished(); }, std::chrono::milliseconds(5));
    pollfd set{.fd = second.transport().event_fd(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&set, 1, 1000), 1) << "nothing woke it in round " << round;
    ASSERT_TRUE(run([&] { return second.num_complete() == num_before + 2 && first.all_sends_finished(); }));
  }
}

TEST_P(TransportConformance, does_not_arm_while_something_waits) {
  const PeerId peer = to_second();
  first.send(peer, pattern(8, 0));
  ASSERT_TRUE(run([&] { return second.num_complete() == 1 && first.all_sends_finished(); }));
  first.send(peer, pattern(8, 0));
  ASSERT_TRUE(drive({&first}, [&] { return first.all_sends_finished(); }));
  while (!second.transport().arm()) second.transport().progress();
  pollfd set{.fd = second.transport().event_fd(), .events = POLLIN, .revents = 0};
  const bool is_rung = second.num_complete() == 1 && poll(&set, 1, 1000) == 1;
  EXPECT_TRUE(second.num_complete() == 2 || is_rung);
}

TEST_P(TransportConformance, flush_delivers_before_destruction) {
  const PeerId peer = to_second();
  constexpr uint32_t kNumMessages = 300;
  std::jthread receiver([&] { EXPECT_TRUE(drive({&second}, [&] { return second.num_complete() == kNumMessages; })); });
  for (uint32_t i = 0; i < kNumMessages; ++i) first.send(peer, pattern(i % 50 == 0 ? kLarge : 2000, i));
  first.transport().flush(20'000);
  first.close();
}

TEST_P(TransportConformance, flush_gives_up_at_its_deadline) {
  const PeerId peer = to_second();
  first.send(peer, pattern(kLarge, 1));  // no thread calls the receiver's progress()
  const auto start = std::chrono::steady_clock::now();
  first.transport().flush(100);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}

TEST_P(TransportConformance, nothing_goes_to_a_dropped_peer) {
  const PeerId peer = to_second();
  first.send(peer, pattern(8, 1));
  ASSERT_TRUE(run([&] { return second.num_complete() == 1 && first.all_sends_finished(); }));
  first.transport().drop_peer(peer);
  const Transfer& send = first.send(peer, pattern(8, 1));
  ASSERT_TRUE(run([&] { return send.finished(); }));
  EXPECT_EQ(send.status.code(), ErrorCode::kPeerLost);
  first.transport().progress();
  EXPECT_TRUE(first.lost.empty()) << "a transport reports only losses that it noticed itself";
}

TEST_P(TransportConformance, destruction_notifies_no_peer) {
  const PeerId peer = to_second();
  second.policy = Node::Policy::kHold;
  const Transfer& waiting = first.send(peer, pattern(kLarge, 1));
  ASSERT_TRUE(run([&] { return second.arrivals.size() == 1; }));
  first.close();
  EXPECT_FALSE(waiting.finished());
}

}  // namespace
}  // namespace axon::transport
