// Tests rails for messages between two transports of this process: how they begin and end, and what is not a rail.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/tcp_socket.hpp"
#include "transport/node.hpp"
#include "transport/relay.hpp"
#include "transport/shortage.hpp"
#include "transport/sockets/socket_transport.hpp"

namespace axon::transport {
namespace {

using namespace std::chrono_literals;

constexpr size_t kLong = size_t{300} << 10;
const std::string kDevices[] = {"lo"};

std::unique_ptr<SocketTransport> open() {
  return std::move(SocketTransport::open(kDevices)).value();
}

RailAddress address_of(Node& node) {
  return static_cast<SocketTransport&>(node.transport()).port().address();
}

// The address of a transport with another port, such as a relay's.
Bytes with_port(Node& node, uint16_t port) {
  const auto address = node.transport().address();
  RailAddress rails = address_of(node);
  const size_t num_before = rails.encode().size();
  rails.port = port;
  const std::vector<std::byte> encoded = rails.encode();
  Bytes changed(address.begin(), address.end());
  EXPECT_EQ(encoded.size(), num_before);
  std::ranges::copy(encoded, changed.begin());
  return changed;
}

FileDescriptor connect_to(Node& node) {
  const RailAddress address = address_of(node);
  const SystemAddress to = system_address(address.addresses.front(), address.port);
  FileDescriptor socket(::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(socket.get(), to.get(), to.num_bytes), 0) << last_error();
  return socket;
}

void say(const FileDescriptor& socket, std::span<const std::byte> bytes) {
  EXPECT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
}

Bytes hear(const FileDescriptor& socket, size_t num_bytes) {
  const timeval patience{.tv_sec = 20, .tv_usec = 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  Bytes bytes(num_bytes);
  const ssize_t num_read = ::recv(socket.get(), bytes.data(), bytes.size(), MSG_WAITALL);
  bytes.resize(static_cast<size_t>(std::max<ssize_t>(num_read, 0)));
  return bytes;
}

// Returns whether the other end closes the connection without sending anything more.
bool is_closed(const FileDescriptor& socket) {
  errno = 0;
  return hear(socket, 1).empty() && errno != EAGAIN;
}

// Connects as a process of this name, which knows the token.
FileDescriptor join(Node& node, uint64_t name) {
  FileDescriptor socket = connect_to(node);
  RailHandshake handshake = RailHandshake::connector(address_of(node).token, name, kMessageRail, random_nonce());
  while (handshake.state() == RailHandshake::State::kRunning) {
    say(socket, handshake.take_output());
    handshake.feed(hear(socket, handshake.num_wanted()));
  }
  EXPECT_EQ(handshake.state(), RailHandshake::State::kEstablished);
  return socket;
}

class Sockets : public testing::Test {
 protected:
  bool run(const std::function<bool()>& condition) { return drive({&first, &second}, condition); }
  void idle(std::chrono::milliseconds time) {
    drive({&first, &second}, [] { return false; }, time);
  }
  size_t num_rails(Node& node, PeerId peer) {
    return static_cast<SocketTransport&>(node.transport()).num_open_rails(peer);
  }
  size_t num_links(Node& node) { return static_cast<SocketTransport&>(node.transport()).num_links(); }
  // Makes peers of the same host, whose rails wait for the first message.
  void meet() {
    to_second = first.meet(second, true);
    to_first = second.meet(first, true);
  }
  void meet_through(uint16_t port) {
    to_second = first.transport().add_peer(with_port(second, port), true).value();
    to_first = second.meet(first, true);
  }

  Node first{open()};
  Node second{open()};
  Node third{open()};
  const PeerId to_third = second.meet(third, true);  // from the first peer on, a transport accepts rails
  PeerId to_second = 0;
  PeerId to_first = 0;
};

TEST_F(Sockets, both_connecting_at_once_keep_one_rail) {
  meet();
  for (uint32_t i = 0; i < 50; ++i) {
    first.send(to_second, pattern(i % 2 == 0 ? kLong : 100, i), i);
    second.send(to_first, pattern(i % 2 == 0 ? kLong : 100, i), i);
  }
  ASSERT_TRUE(run([&] {
    return first.num_complete() == 50 && second.num_complete() == 50 && first.all_sends_finished() &&
           second.all_sends_finished();
  }));
  EXPECT_TRUE(run([&] { return num_rails(first, to_second) == 1 && num_rails(second, to_first) == 1; }));
  first.send(to_second, pattern(10, 51), 51);
  second.send(to_first, pattern(10, 51), 51);
  EXPECT_TRUE(run([&] { return first.num_complete() == 51 && second.num_complete() == 51; }));
  EXPECT_TRUE(first.lost.empty() && second.lost.empty());
  EXPECT_EQ(first.num_refused + second.num_refused, 0u);
  for (Node* node : {&first, &second}) {
    for (const Arrival& arrival : node->arrivals)
      EXPECT_EQ(arrival.bytes(), pattern(arrival.num_bytes, arrival.sequence()));
  }
}

TEST_F(Sockets, to_another_host_are_connected_by_a_message_unless_they_are_watched) {
  to_second = first.transport().add_peer(second.transport().address(), false).value();
  to_first = second.transport().add_peer(first.transport().address(), false).value();
  EXPECT_EQ(first.transport().num_descriptors_to_come(to_second), 0u);
  idle(2500ms);  // one that is watched is connected within two seconds
  EXPECT_EQ(num_rails(first, to_second) + num_rails(second, to_first), 0u);
  first.send(to_second, pattern(10, 1), 1);
  EXPECT_TRUE(run([&] { return second.num_complete() == 1; }));
  EXPECT_EQ(num_rails(first, to_second), 1u);
  second.close();
  EXPECT_TRUE(drive({&first}, [&] { return !first.lost.empty(); }));
}

TEST_F(Sockets, to_another_host_are_connected_without_a_message) {
  to_second = first.meet(second, false);
  to_first = second.meet(first, false);
  EXPECT_TRUE(run([&] { return num_rails(first, to_second) == 1 && num_rails(second, to_first) == 1; }));
  second.close();
  EXPECT_TRUE(drive({&first}, [&] { return !first.lost.empty(); }));
}

TEST_F(Sockets, deliver_before_their_sender_was_added_as_a_peer) {
  to_second = first.meet(second, true);
  first.send(to_second, pattern(10, 1), 1);
  first.send(to_second, pattern(kLong, 2), 2);
  ASSERT_TRUE(run([&] { return second.num_complete() == 2 && first.all_sends_finished(); }));
  to_first = second.meet(first, true);
  second.send(to_first, pattern(kLong, 3), 3);
  ASSERT_TRUE(run([&] { return first.num_complete() == 1 && second.all_sends_finished(); }));
  EXPECT_EQ(num_rails(second, to_first), 1u);
}

TEST_F(Sockets, to_a_process_that_is_gone_fail_by_name) {
  to_second = first.meet(second, true);
  second.close();
  const Transfer& send = first.send(to_second, pattern(10, 1));
  ASSERT_TRUE(drive({&first}, [&] { return send.finished() && !first.lost.empty(); }));
  EXPECT_EQ(first.num_unfinished_at_loss, 1u);
  EXPECT_EQ(send.status.code(), ErrorCode::kPeerLost);
  EXPECT_NE(send.status.message().find("no connection to it can be opened"), std::string::npos)
      << send.status.message();
}

// Messages that were sent before the end still count.
TEST_F(Sockets, deliver_what_was_sent_before_their_end) {
  meet();
  first.send(to_second, pattern(10, 0), 0);
  second.send(to_first, pattern(10, 0), 0);
  ASSERT_TRUE(run([&] { return first.num_complete() == 1 && second.num_complete() == 1; }));
  for (uint32_t i = 1; i <= 100; ++i) first.send(to_second, pattern(1000, i), i);
  second.send(to_first, pattern(1000, 1), 1);  // unread when its receiver ends
  ASSERT_TRUE(first.all_sends_finished());
  first.transport().flush(1000);
  first.close();
  ASSERT_TRUE(drive({&second}, [&] { return second.num_complete() == 101 && !second.lost.empty(); }));
}

TEST_F(Sockets, cut_at_every_step_lose_the_peer_at_both_ends) {
  for (const uint64_t num_bytes : {0, 1, 55, 56, 88, 100, 152, 153, 1000, 100'000, 200'000}) {
    Node one{open()};
    Node other{open()};
    Relay relay{address_of(other).port};
    const PeerId there = one.transport().add_peer(with_port(other, relay.port()), true).value();
    const PeerId back = other.meet(one, true);
    relay.cut_one_after(num_bytes);
    for (uint32_t i = 0; i < 10; ++i) one.send(there, pattern(i % 2 == 0 ? kLong : 2000, i), i);
    const auto has_ended = [&] { return one.all_sends_finished() && (one.lost.size() + other.lost.size() == 2); };
    const auto has_arrived = [&] { return other.num_complete() == 10 && one.all_sends_finished(); };
    // A handshake that was cut is repeated.
    ASSERT_TRUE(drive({&one, &other}, [&] { return has_ended() || has_arrived(); })) << num_bytes;
    EXPECT_TRUE(num_bytes < 100 || !one.lost.empty()) << num_bytes;
    (void)back;
  }
}

TEST_F(Sockets, leave_memory_alone_once_their_peer_is_dropped) {
  Relay relay{address_of(second).port};
  meet_through(relay.port());
  first.send(to_second, pattern(10, 1));
  ASSERT_TRUE(run([&] { return second.num_complete() == 1; }));
  first.send(to_second, pattern(size_t{64} << 20, 1), 1);
  ASSERT_TRUE(run([&] { return second.arrivals.size() == 2 && relay.num_bytes() > (size_t{1} << 20); }));
  relay.hold();
  idle(20ms);
  second.transport().drop_peer(to_first);
  first.transport().drop_peer(to_second);
  Bytes& received = second.arrivals.back().fetch.bytes;
  std::ranges::fill(received, std::byte{2});
  relay.go_on();
  ASSERT_TRUE(run([&] { return first.all_sends_finished() && second.arrivals.back().fetch.finished(); }));
  idle(50ms);
  EXPECT_TRUE(std::ranges::all_of(received, [](std::byte byte) { return byte == std::byte{2}; }));
  EXPECT_EQ(first.sends.back().status.code(), ErrorCode::kPeerLost);
  EXPECT_EQ(second.arrivals.back().fetch.status.code(), ErrorCode::kPeerLost);
  EXPECT_TRUE(first.lost.empty() && second.lost.empty());
}

TEST_F(Sockets, wait_for_room_without_spinning) {
  Relay relay{address_of(second).port};
  meet_through(relay.port());
  first.send(to_second, pattern(10, 1));
  ASSERT_TRUE(run([&] { return second.num_complete() == 1; }));
  relay.hold();
  while (first.sends.back().finished()) {
    first.send(to_second, pattern(60'000, 1), 1);
    first.transport().progress();
  }
  EXPECT_TRUE(drive({&first}, [&] { return first.transport().arm(); }));
  relay.go_on();
  ASSERT_TRUE(run([&] { return first.all_sends_finished() && second.num_complete() == first.sends.size(); }));
}

// ---- Losses

TEST_F(Sockets, forget_processes_that_come_and_go) {
  for (uint32_t i = 0; i < 20; ++i) {
    Node other{open()};
    const PeerId there = first.meet(other, true);
    other.meet(first, true);
    first.send(there, pattern(10, i), i);
    ASSERT_TRUE(drive({&first, &other}, [&] { return other.num_complete() == 1; }));
    const bool is_dropped = i % 2 == 0;
    is_dropped ? first.transport().drop_peer(there) : other.close();
    ASSERT_TRUE(drive({&first}, [&] { return num_links(first) == 0; })) << i;
    const Transfer& late = first.send(there, pattern(10, i), i);
    EXPECT_EQ(late.status.code(), ErrorCode::kPeerLost);
    EXPECT_EQ(late.status.message(),
              is_dropped ? "its connection has been given up" : "its connection broke: the other end has closed it");
    EXPECT_EQ(first.lost.size(), (i + 1) / 2);
  }
}

TEST_F(Sockets, forget_processes_that_were_never_added_as_peers) {
  to_second = first.meet(second, true);
  for (uint64_t name = 1; name <= 20; ++name) {
    {
      const FileDescriptor socket = join(first, name);
      ASSERT_TRUE(run([&] { return num_links(first) == 2; }));
    }
    ASSERT_TRUE(run([&] { return num_links(first) == 1; }));
  }
}

TEST_F(Sockets, remember_a_lost_peer_until_its_last_message_is_refused) {
  meet();
  second.policy = Node::Policy::kHold;
  first.send(to_second, pattern(kLong, 1), 1);
  ASSERT_TRUE(run([&] { return second.arrivals.size() == 1; }));
  second.transport().drop_peer(to_first);
  first.close();
  drive({&second}, [] { return false; }, 20ms);
  EXPECT_EQ(num_links(second), 2u);
  second.transport().refuse(std::exchange(second.arrivals.front().rendezvous, nullptr), Status());
  EXPECT_TRUE(drive({&second}, [&] { return num_links(second) == 1; }));
}

// A peer that has been given up before it connects finds out when it does. If it connects once more, it has given up,
// too.
TEST_F(Sockets, close_the_first_rail_of_a_peer_that_was_forgotten) {
  to_second = first.meet(second, true);
  first.transport().drop_peer(to_second);
  ASSERT_TRUE(run([&] { return num_links(first) == 0; }));
  const FileDescriptor before = join(first, address_of(second).name);
  std::byte next;
  EXPECT_TRUE(run([&] { return ::recv(before.get(), &next, 1, MSG_DONTWAIT) == 0; }));
  const FileDescriptor after = join(first, address_of(second).name);
  EXPECT_TRUE(run([&] { return num_links(first) == 1; }));
  to_second = first.meet(second, true);
  EXPECT_EQ(num_rails(first, to_second), 1u);
}

// ---- Processes that lost each other, and meet again

// Either end may give up, and either may begin. It sends before the other one has added it again.
TEST_F(Sockets, connect_again_after_a_loss) {
  meet();
  first.send(to_second, pattern(10, 0));
  ASSERT_TRUE(run([&] { return second.num_complete() == 1; }));
  const auto begin = [](Node& node, Node& other, PeerId& peer, uint32_t number) {
    peer = node.meet(other, true);
    node.send(peer, pattern(kLong, number), number);
  };
  for (uint32_t i = 1; i <= 4; ++i) {
    const bool gives_first_up = i <= 2;
    gives_first_up ? second.transport().drop_peer(to_first) : first.transport().drop_peer(to_second);
    ASSERT_TRUE(run([&] { return first.lost.size() + second.lost.size() == i; })) << i;
    const bool begins_with_first = i % 2 == 0;
    begins_with_first ? begin(first, second, to_second, i) : begin(second, first, to_first, i);
    ASSERT_TRUE(run([&] { return first.num_complete() + second.num_complete() == 2 * i; })) << i;
    begins_with_first ? begin(second, first, to_first, i) : begin(first, second, to_second, i);
    ASSERT_TRUE(run([&] { return first.num_complete() == i && second.num_complete() == i + 1; })) << i;
  }
  EXPECT_TRUE(run([&] { return first.all_sends_finished() && second.all_sends_finished(); }));
  EXPECT_EQ(num_rails(first, to_second), 1u);
  EXPECT_EQ(num_links(first), 1u);
  EXPECT_EQ(first.num_refused + second.num_refused, 0u);
}

// The end that cannot connect again, as while the link between the hosts is down, gives the other one up once more. It
// still takes the connection of the other end.
TEST_F(Sockets, connect_again_after_attempts_that_failed) {
  meet();
  first.send(to_second, pattern(10, 0));
  ASSERT_TRUE(run([&] { return second.num_complete() == 1; }));
  first.transport().drop_peer(to_second);
  ASSERT_TRUE(run([&] { return second.lost.size() == 1; }));
  for (size_t i = 1; i <= 2; ++i) {
    Relay relay{address_of(second).port};
    relay.close();
    to_second = first.meet(with_port(second, relay.port()), false);
    ASSERT_TRUE(run([&] { return first.lost.size() == i; }));
  }
  to_first = second.meet(first, true);
  second.send(to_first, pattern(kLong, 1), 1);
  ASSERT_TRUE(run([&] { return first.num_complete() == 1 && second.all_sends_finished(); }));
  EXPECT_EQ(second.lost.size(), 1u);
}

// The second process does not hear that the first one has lost it, as when the link between their hosts was down.
TEST_F(Sockets, replace_a_connection_that_only_one_end_has_lost) {
  Relay relay{address_of(second).port};
  meet_through(relay.port());
  first.send(to_second, pattern(10, 1), 1);
  ASSERT_TRUE(run([&] { return second.num_complete() == 1; }));
  relay.hold();
  first.transport().drop_peer(to_second);
  to_second = first.meet(second, true);
  first.send(to_second, pattern(kLong, 2), 2);
  ASSERT_TRUE(run([&] { return !second.lost.empty() && second.arrivals.size() == 2; }));
  EXPECT_EQ(second.lost.front(), to_first);
  const Transfer& late = second.send(to_first, pattern(10, 3), 3);
  EXPECT_NE(late.status.message().find("has opened another one"), std::string::npos) << late.status.message();
  to_first = second.meet(first, true);
  second.send(to_first, pattern(kLong, 4), 4);
  EXPECT_TRUE(run([&] { return first.num_complete() == 1 && second.num_complete() == 2; }));
  relay.go_on();  // the end of the former connection arrives
  second.send(to_first, pattern(10, 5), 5);
  EXPECT_TRUE(run([&] { return first.num_complete() == 2; }));
  EXPECT_EQ(second.lost.size(), 1u);
  EXPECT_TRUE(first.lost.empty());
}

// A listener that does not answer the proof may be a stopped process, for which there is no deadline.
TEST_F(Sockets, end_the_handshake_of_a_dropped_peer) {
  const FileDescriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in loopback{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {}, .sin_zero = {}};
  loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&loopback), sizeof loopback), 0) << last_error();
  ASSERT_EQ(::listen(listener.get(), 1), 0) << last_error();
  meet_through(port_of(listener));
  first.send(to_second, pattern(10, 1));
  const FileDescriptor accepted(::accept(listener.get(), nullptr, nullptr));
  RailHandshake handshake = RailHandshake::listener(address_of(second).token, random_nonce());
  handshake.feed(hear(accepted, handshake.num_wanted()));
  say(accepted, handshake.take_output());
  ASSERT_EQ(hear(accepted, sizeof(Digest)).size(), sizeof(Digest));
  first.transport().drop_peer(to_second);
  EXPECT_TRUE(is_closed(accepted));
}

// Handshakes fail until the connector has no descriptor left for one. Nothing else connects the two processes.
TEST_F(Sockets, connect_to_another_host_once_descriptors_come_back) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer itself needs descriptors: it reads through a pipe whether an object is accessible";
#endif
  Relay relay{address_of(second).port};
  relay.cut_one_after(0);
  to_second = first.meet(with_port(second, relay.port()), false);
  const Transfer& send = first.send(to_second, pattern(10, 1));
  testing::internal::CaptureStderr();
  {
    Shortage shortage;
    ASSERT_TRUE(run([&] {
      relay.cut_one_after(0);
      shortage.go_on();
      return send.finished();
    }));
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("messages to it fail for now"), std::string::npos) << log;
  EXPECT_NE(log.find("file descriptors"), std::string::npos) << log;
  EXPECT_EQ(send.status.code(), ErrorCode::kResourceExhausted) << send.status.message();
  EXPECT_TRUE(first.lost.empty());
  relay.cut_one_after(size_t{1} << 40);
  EXPECT_TRUE(run([&] { return num_rails(first, to_second) == 1; }));
  first.send(to_second, pattern(10, 2), 2);
  EXPECT_TRUE(run([&] { return second.num_complete() == 1; }));
}

// ---- Strangers

TEST_F(Sockets, take_nothing_from_strangers) {
  meet();
  const FileDescriptor garbage = connect_to(second);
  say(garbage, pattern(100, 1));
  EXPECT_TRUE(hear(garbage, 1).empty());
  const FileDescriptor without_token = connect_to(second);
  RailHandshake handshake = RailHandshake::connector(random_token(), 1, kMessageRail, random_nonce());
  say(without_token, handshake.take_output());
  handshake.feed(hear(without_token, handshake.num_wanted()));
  say(without_token, handshake.take_output());
  EXPECT_TRUE(hear(without_token, 1).empty());
  EXPECT_TRUE(run([&] { return second.num_refused == 2; }));
  first.send(to_second, pattern(10, 1));
  EXPECT_TRUE(run([&] { return second.num_complete() == 1; }));
}

// Processes that know the token, and send what no transport of ours sends.
TEST_F(Sockets, end_at_the_first_invalid_frame) {
  const auto frame = [](FrameKind kind, uint32_t num_bytes, uint64_t number, uint64_t position) {
    return FrameHeader{.num_bytes = num_bytes, .kind = kind, .number = number, .position = position, .message = {}};
  };
  const FrameHeader invalid[] = {
      frame(FrameKind{0}, 0, 0, 0),
      frame(FrameKind{7}, 0, 0, 0),
      frame(FrameKind::kMessage, Transport::kLargestEager + 1, 0, 0),
      frame(FrameKind::kRts, 0, 0, 0),
      frame(FrameKind::kRts, 1, 0, 1),
      frame(FrameKind::kCts, 0, 1, 1),
      frame(FrameKind::kNack, 0, 1, 0),
      frame(FrameKind::kNack, 513, 1, 0),
      frame(FrameKind::kData, 0, 0, 0),
      frame(FrameKind::kData, 8, uint64_t{1} << 32, 0),
  };
  uint64_t name = 1;
  for (const FrameHeader& header : invalid) {
    const FileDescriptor socket = join(second, name++);
    say(socket, std::as_bytes(std::span(&header, 1)));
    ASSERT_TRUE(run([&] { return second.num_refused == name - 1; })) << static_cast<int>(header.kind);
    EXPECT_TRUE(hear(socket, 1).empty());
  }
  EXPECT_TRUE(second.arrivals.empty());
}

TEST_F(Sockets, refuse_data_beyond_what_was_fetched) {
  const FileDescriptor socket = join(second, 1);
  const FrameHeader rts{.kind = FrameKind::kRts, .number = 5, .position = 1000, .message = {}};
  say(socket, std::as_bytes(std::span(&rts, 1)));
  ASSERT_TRUE(run([&] { return second.arrivals.size() == 1; }));
  idle(10ms);
  FrameHeader cts;
  const Bytes heard = hear(socket, sizeof cts);
  ASSERT_EQ(heard.size(), sizeof cts);
  std::memcpy(&cts, heard.data(), sizeof cts);
  EXPECT_EQ(cts.kind, FrameKind::kCts);
  EXPECT_EQ(cts.number, 5u);
  const FrameHeader beyond{
      .num_bytes = 500, .kind = FrameKind::kData, .number = cts.position, .position = 501, .message = {}};
  say(socket, std::as_bytes(std::span(&beyond, 1)));
  EXPECT_TRUE(run([&] { return second.num_refused == 1; }));
  EXPECT_EQ(second.arrivals.front().fetch.status.code(), ErrorCode::kPeerLost);
}

TEST_F(Sockets, refuse_the_address_of_another_network) {
  const Bytes foreign = pattern(300, 1);
  const auto added = first.transport().add_peer(foreign, false);
  ASSERT_FALSE(added.ok());
  EXPECT_NE(added.status().message().find("AXON_TRANSPORTS"), std::string::npos) << added.status().message();
}

}  // namespace
}  // namespace axon::transport
