// Tests long messages over rails between two transports of this process: rails that break at every step, peers that are
// dropped meanwhile, and what is not a rail. The loopback transport carries everything else.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/tcp_socket.hpp"
#include "transport/loopback/loopback.hpp"
#include "transport/node.hpp"
#include "transport/rails/rail_transport.hpp"
#include "transport/relay.hpp"

namespace axon::transport {
namespace {

using namespace std::chrono_literals;

constexpr size_t kLong = (size_t{5} << 20) + 7;

RailOptions on_loopback(size_t num_rails) {
  return {.num_rails = num_rails, .devices = {"lo"}, .use = RailOptions::Use::kToAll};
}

RailAddress rails_of(Transport& transport) {
  const auto address = transport.address();
  uint32_t num_bytes = 0;
  std::memcpy(&num_bytes, address.last(sizeof num_bytes).data(), sizeof num_bytes);
  return RailAddress::decode(address.first(address.size() - sizeof num_bytes).last(num_bytes)).value();
}

// The address of a transport, with other rails.
Bytes with_rails_of(Transport& transport, const RailAddress& rails) {
  const auto address = transport.address();
  const size_t num_own = rails_of(transport).encode().size() + sizeof(uint32_t);
  const std::vector<std::byte> encoded = rails.encode();
  const auto num_bytes = static_cast<uint32_t>(encoded.size());
  const auto length = std::as_bytes(std::span(&num_bytes, 1));
  const auto below = address.first(address.size() - num_own);
  Bytes changed(below.begin(), below.end());
  changed.insert(changed.end(), encoded.begin(), encoded.end());
  changed.insert(changed.end(), length.begin(), length.end());
  return changed;
}

// The address of a transport, with rails that lead to another port.
Bytes with_port(Transport& transport, uint16_t port) {
  RailAddress rails = rails_of(transport);
  rails.port = port;
  return with_rails_of(transport, rails);
}

// Messages go from `sender` to `receiver`, over rails through a relay that tests may disturb.
class Rails : public testing::TestWithParam<size_t> {
 protected:
  RailTransport& rails() { return static_cast<RailTransport&>(sender.transport()); }
  bool run(const std::function<bool()>& condition) { return drive({&sender, &receiver}, condition); }
  // Until all rails are open, long messages take the network.
  void open_rails() {
    ASSERT_TRUE(run([&] {
      const bool are_open = rails().num_open_rails(to_receiver) == GetParam();
      if (!are_open && sender.all_sends_finished()) sender.send(to_receiver, pattern(kLong, 0));
      return are_open && sender.all_sends_finished() && receiver.num_complete() == receiver.arrivals.size();
    }));
    forget();
  }
  void forget() {
    sender.sends.clear();
    receiver.arrivals.clear();
  }
  void expect_whole(size_t num_messages) {
    ASSERT_TRUE(run([&] { return sender.all_sends_finished() && receiver.num_complete() == num_messages; }));
    for (const Transfer& send : sender.sends) EXPECT_TRUE(send.status.ok()) << send.status.message();
    for (const Arrival& arrival : receiver.arrivals) {
      EXPECT_TRUE(arrival.fetch.status.ok()) << arrival.fetch.status.message();
      EXPECT_EQ(arrival.bytes(), pattern(arrival.num_bytes, arrival.sequence()));
    }
  }

  LoopbackFabric fabric{FaultPlan{}};
  Node sender{with_rails(fabric.make_transport(), on_loopback(GetParam()))};
  Node receiver{with_rails(fabric.make_transport(), on_loopback(GetParam()))};
  Relay relay{rails_of(receiver.transport()).port};
  const PeerId to_receiver = sender.transport().add_peer(with_port(receiver.transport(), relay.port()), false).value();
  const PeerId to_sender = receiver.meet(sender, false);
};

INSTANTIATE_TEST_SUITE_P(Numbers, Rails, testing::Values(1, 3));

TEST_P(Rails, carry_long_messages_of_every_length) {
  open_rails();
  const uint64_t before = relay.num_bytes();
  uint64_t num_bytes = 0;
  uint32_t sequence = 0;
  for (const size_t length :
       {RailTransport::kLongestWhole + 1, size_t{1} << 20, (size_t{1} << 20) + 1, size_t{9} << 20}) {
    sender.send(to_receiver, pattern(length, sequence), sequence);
    num_bytes += length;
    ++sequence;
  }
  expect_whole(sequence);
  EXPECT_GE(relay.num_bytes() - before, num_bytes) << "some message took the network";
}

TEST_P(Rails, carry_many_messages_at_a_time_both_ways) {
  open_rails();
  receiver.send(to_sender, pattern(kLong, 0));
  ASSERT_TRUE(run([&] { return sender.num_complete() == 1 && receiver.all_sends_finished(); }));
  sender.arrivals.clear();
  for (uint32_t i = 0; i < 20; ++i) {
    sender.send(to_receiver, pattern(kLong / (1 + i % 5), i), i);
    receiver.send(to_sender, pattern(kLong / (1 + i % 4), i), i);
  }
  expect_whole(20);
  ASSERT_TRUE(run([&] { return receiver.all_sends_finished() && sender.num_complete() == 20; }));
  for (const Arrival& arrival : sender.arrivals) {
    EXPECT_EQ(arrival.bytes(), pattern(arrival.num_bytes, arrival.sequence()));
  }
}

// Cuts the rails one after the other, each after some more bytes. Those that are left, or new ones, carry the rest.
TEST_P(Rails, break_at_every_step_without_harm) {
  uint32_t sequence = 0;
  for (const uint64_t num_bytes : {0, 1, 31, 32, 33, 70'000, 1'048'576, 1'048'608, 1'048'640, 3'000'000, 5'000'000}) {
    open_rails();
    relay.cut_one_after(num_bytes);
    for (int i = 0; i < 3; ++i, ++sequence) sender.send(to_receiver, pattern(kLong, sequence), sequence);
    expect_whole(3);
    ASSERT_TRUE(sender.lost.empty() && receiver.lost.empty()) << "cut after " << num_bytes << " bytes";
    forget();
  }
}

// Within the hello, between hello and proof, and within the proof. Meanwhile the network carries the messages.
TEST_P(Rails, that_break_during_their_handshake_are_opened_later) {
  for (const uint64_t num_bytes : {20, 56, 70}) {
    relay.cut_one_after(num_bytes);
    sender.send(to_receiver, pattern(kLong, 3), 3);
    expect_whole(1);
    forget();
    open_rails();
    relay.cut_all();
    ASSERT_TRUE(run([&] { return rails().num_open_rails(to_receiver) == 0; }));
    ASSERT_TRUE(sender.lost.empty() && receiver.lost.empty()) << "cut after " << num_bytes << " bytes";
  }
}

TEST_P(Rails, that_all_break_for_good_lose_the_peer_with_the_reason) {
  open_rails();
  relay.hold();
  const Transfer& send = sender.send(to_receiver, pattern(size_t{64} << 20, 1));
  ASSERT_TRUE(run([&] { return !receiver.arrivals.empty(); }));
  relay.close();
  ASSERT_TRUE(run([&] { return send.finished() && !sender.lost.empty(); }));
  EXPECT_EQ(send.status.code(), ErrorCode::kPeerLost);
  EXPECT_NE(send.status.message().find("all rails to it broke"), std::string::npos) << send.status.message();
  EXPECT_EQ(sender.lost, std::vector<PeerId>{to_receiver});
  EXPECT_EQ(sender.num_unfinished_at_loss, 1u);
}

// Between messages a break is nothing to worry about: the network carries long ones until rails are open again.
TEST_P(Rails, that_break_while_idle_are_opened_again) {
  open_rails();
  for (int i = 0; i < 3; ++i) {
    relay.cut_all();
    ASSERT_TRUE(run([&] { return rails().num_open_rails(to_receiver) == 0; }));
    sender.send(to_receiver, pattern(kLong, 1), 1);
    expect_whole(1);
    forget();
    open_rails();
  }
}

// A stalled rail delays its stripes. The memory of a dropped peer's transfers is free at once nevertheless.
TEST_P(Rails, leave_memory_alone_once_their_peer_is_dropped) {
  open_rails();
  relay.hold();
  sender.send(to_receiver, pattern(size_t{64} << 20, 1));
  ASSERT_TRUE(run([&] { return !receiver.arrivals.empty(); }));
  receiver.transport().drop_peer(to_sender);
  sender.transport().drop_peer(to_receiver);
  Bytes& sent = sender.sends.front().bytes;
  Bytes& received = receiver.arrivals.front().fetch.bytes;
  std::ranges::fill(sent, std::byte{1});
  std::ranges::fill(received, std::byte{2});
  relay.go_on();
  ASSERT_TRUE(run([&] { return sender.all_sends_finished() && receiver.arrivals.front().fetch.finished(); }));
  drive({&sender, &receiver}, [] { return false; }, 100ms);
  EXPECT_TRUE(std::ranges::all_of(received, [](std::byte byte) { return byte == std::byte{2}; }));
  EXPECT_EQ(sender.sends.front().status.code(), ErrorCode::kPeerLost);
  EXPECT_EQ(receiver.arrivals.front().fetch.status.code(), ErrorCode::kPeerLost);
}

// The receiver must not take what remains of a stripe from anywhere else.
TEST_P(Rails, never_complete_a_message_that_its_sender_gave_up) {
  open_rails();
  relay.hold();
  sender.send(to_receiver, pattern(size_t{16} << 20, 1));
  ASSERT_TRUE(run([&] { return !receiver.arrivals.empty(); }));
  sender.transport().drop_peer(to_receiver);
  relay.go_on();
  drive({&sender, &receiver}, [] { return false; }, 300ms);
  EXPECT_FALSE(receiver.arrivals.front().fetch.finished());
}

TEST_P(Rails, end_with_their_transport_however_far_they_are) {
  open_rails();
  relay.hold();
  sender.send(to_receiver, pattern(size_t{64} << 20, 1));
  ASSERT_TRUE(run([&] { return !receiver.arrivals.empty(); }));
  receiver.close();
  sender.close();
  EXPECT_FALSE(sender.all_sends_finished());
}

// The first address accepts connections, but does not answer: the time for new rails must suffice for the second.
TEST(RailRescues, try_the_second_address_if_the_first_is_silent) {
  LoopbackFabric fabric{FaultPlan{}};
  Node sender{with_rails(fabric.make_transport(), on_loopback(1))};
  Node receiver{with_rails(fabric.make_transport(), on_loopback(1))};
  Relay relay{rails_of(receiver.transport()).port};
  sockaddr_in first{.sin_family = AF_INET, .sin_port = htons(relay.port()), .sin_addr = {}, .sin_zero = {}};
  first.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
  const auto* const first_address = reinterpret_cast<const sockaddr*>(&first);
  RailAddress address = rails_of(receiver.transport());
  address.port = relay.port();
  address.addresses.insert(address.addresses.begin(), ip_address(*first_address));
  const PeerId to_receiver = sender.transport().add_peer(with_rails_of(receiver.transport(), address), false).value();
  receiver.meet(sender, false);
  auto& rails = static_cast<RailTransport&>(sender.transport());
  ASSERT_TRUE(drive({&sender, &receiver}, [&] {
    const bool is_open = rails.num_open_rails(to_receiver) == 1;
    if (!is_open && sender.all_sends_finished()) sender.send(to_receiver, pattern(kLong, 0));
    return is_open && sender.all_sends_finished();
  }));
  const FileDescriptor silent = open_tcp_socket(AF_INET);
  ASSERT_EQ(::bind(silent.get(), first_address, sizeof first), 0) << last_error();
  ASSERT_EQ(::listen(silent.get(), 1), 0) << last_error();
  relay.cut_one_after(kLong / 2);
  const Transfer& sent = sender.send(to_receiver, pattern(kLong, 1), 1);
  ASSERT_TRUE(drive({&sender, &receiver}, [&] { return sent.finished(); }));
  ASSERT_TRUE(sent.status.ok()) << sent.status.message();
  EXPECT_EQ(receiver.arrivals.back().bytes(), pattern(kLong, 1));
}

// The first address is one that this host has itself; the second one is in a subnet of this host.
TEST(RailAddresses, in_a_subnet_of_this_host_are_tried_first) {
  LoopbackFabric fabric{FaultPlan{}};
  Node sender{with_rails(fabric.make_transport(), on_loopback(1))};
  Node receiver{with_rails(fabric.make_transport(), on_loopback(1))};
  Relay relay{rails_of(receiver.transport()).port, INADDR_ANY};
  sockaddr_in near{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {}, .sin_zero = {}};
  near.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
  RailAddress address = rails_of(receiver.transport());
  address.port = relay.port();
  address.takes_turns = false;
  address.addresses.push_back(ip_address(reinterpret_cast<const sockaddr&>(near)));
  const PeerId to_receiver = sender.transport().add_peer(with_rails_of(receiver.transport(), address), false).value();
  receiver.meet(sender, false);
  auto& rails = static_cast<RailTransport&>(sender.transport());
  sender.send(to_receiver, pattern(kLong, 0));
  ASSERT_TRUE(drive({&sender, &receiver},
                    [&] { return rails.num_open_rails(to_receiver) == 1 && sender.all_sends_finished(); }));
  const auto lanes = rails.lanes(to_receiver);
  ASSERT_TRUE(lanes.ok());
  EXPECT_EQ(lanes.value().back(), (Lane{.name = "rail", .device = "lo to 127.0.0.2"}));
}

// Threads start with the first peer on another host.
TEST(RailThreads, start_after_a_neighbour_was_dropped) {
  LoopbackFabric fabric{FaultPlan{}};
  const RailOptions options{.num_rails = 1, .devices = {"lo"}, .use = RailOptions::Use::kToOtherHosts};
  Node node{with_rails(fabric.make_transport(), options)};
  Node neighbour{with_rails(fabric.make_transport(), options)};
  Node remote{with_rails(fabric.make_transport(), options)};
  node.transport().drop_peer(node.meet(neighbour, /*same_host=*/true));
  node.meet(remote, /*same_host=*/false);
  node.close();  // ends the threads, which must wake
}

// A rail that is opened again to a process that has dropped its sender is closed again.
TEST_P(Rails, are_refused_after_their_sender_was_dropped) {
  open_rails();
  receiver.transport().drop_peer(to_sender);
  sender.send(to_receiver, pattern(kLong, 1));
  ASSERT_TRUE(run([&] { return sender.all_sends_finished(); }));
  EXPECT_FALSE(sender.sends.front().status.ok());
}

TEST_P(Rails, wake_a_sleeper) {
  open_rails();
  for (uint32_t round = 0; round < 20; ++round) {
    sender.send(to_receiver, pattern(kLong, round), round);
    const std::jthread other([&] { drive({&sender}, [&] { return sender.all_sends_finished(); }); });
    const auto deadline = std::chrono::steady_clock::now() + 20s;
    while (receiver.num_complete() <= round && std::chrono::steady_clock::now() < deadline) {
      if (receiver.transport().progress() != 0 || !receiver.transport().arm()) continue;
      pollfd set{.fd = receiver.transport().event_fd(), .events = POLLIN, .revents = 0};
      ASSERT_EQ(poll(&set, 1, 10'000), 1) << "nothing woke it";
    }
    ASSERT_EQ(receiver.num_complete(), round + 1);
  }
}

}  // namespace
}  // namespace axon::transport
