// Tests what reaches the port of rails from processes that do not know the token.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/tcp_socket.hpp"
#include "transport/loopback/loopback.hpp"
#include "transport/node.hpp"
#include "transport/rails/rail_transport.hpp"

namespace axon::transport {
namespace {

using namespace std::chrono_literals;

constexpr size_t kLong = size_t{3} << 20;

class RailStrangers : public testing::Test {
 protected:
  static RailOptions options() { return {.num_rails = 2, .devices = {"lo"}, .use = RailOptions::Use::kToAll}; }

  RailAddress rails_of_receiver() {
    const auto address = receiver.transport().address();
    uint32_t num_bytes = 0;
    std::memcpy(&num_bytes, address.last(sizeof num_bytes).data(), sizeof num_bytes);
    return RailAddress::decode(address.first(address.size() - sizeof num_bytes).last(num_bytes)).value();
  }
  FileDescriptor connect() {
    const RailAddress rails = rails_of_receiver();
    const SystemAddress to = system_address(rails.addresses.front(), rails.port);
    FileDescriptor socket(::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(socket.get(), to.get(), to.num_bytes), 0) << last_error();
    return socket;
  }
  static void say(const FileDescriptor& socket, std::span<const std::byte> bytes) {
    EXPECT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  static Bytes hear(const FileDescriptor& socket, size_t num_bytes) {
    Bytes bytes(num_bytes);
    const ssize_t num_read = ::recv(socket.get(), bytes.data(), bytes.size(), MSG_WAITALL);
    bytes.resize(static_cast<size_t>(std::max<ssize_t>(num_read, 0)));
    return bytes;
  }
  // Returns all that the connector has said.
  static Bytes shake_hands(const FileDescriptor& socket, RailHandshake& handshake) {
    Bytes said;
    while (handshake.state() == RailHandshake::State::kRunning) {
      const Bytes output = handshake.take_output();
      say(socket, output);
      said.insert(said.end(), output.begin(), output.end());
      handshake.feed(hear(socket, handshake.num_wanted()));
    }
    return said;
  }
  // Returns whether the other end closes the connection without an answer.
  static bool is_closed(const FileDescriptor& socket) {
    const timeval patience{.tv_sec = 20, .tv_usec = 0};
    setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    errno = 0;
    return hear(socket, 1).empty() && errno != EAGAIN;
  }
  bool run(const std::function<bool()>& condition) { return drive({&sender, &receiver}, condition); }
  void expect_rails_to_open() {
    auto& rails = static_cast<RailTransport&>(sender.transport());
    EXPECT_TRUE(run([&] {
      const bool are_open = rails.num_open_rails(to_receiver) == 2;
      if (!are_open && sender.all_sends_finished()) sender.send(to_receiver, pattern(kLong, 0));
      return are_open && sender.all_sends_finished();
    }));
    const size_t num_before = receiver.arrivals.size();
    sender.send(to_receiver, pattern(kLong, 5), 5);
    EXPECT_TRUE(run([&] { return receiver.num_complete() == num_before + 1 && sender.all_sends_finished(); }));
    EXPECT_EQ(receiver.arrivals.back().bytes(), pattern(kLong, 5));
  }

  LoopbackFabric fabric{FaultPlan{}};
  Node sender{with_rails(fabric.make_transport(), options())};
  Node receiver{with_rails(fabric.make_transport(), options())};
  const PeerId to_receiver = sender.meet(receiver, false);
  const PeerId to_sender = receiver.meet(sender, false);
};

TEST_F(RailStrangers, that_send_garbage_are_dropped_and_counted) {
  const FileDescriptor socket = connect();
  say(socket, pattern(100, 1));
  EXPECT_TRUE(is_closed(socket));
  EXPECT_TRUE(run([&] { return receiver.num_refused == 1; }));
  expect_rails_to_open();
}

TEST_F(RailStrangers, without_the_token_get_no_proof) {
  const FileDescriptor socket = connect();
  RailHandshake handshake = RailHandshake::connector(random_token(), 1, 0, random_nonce());
  say(socket, handshake.take_output());
  handshake.feed(hear(socket, handshake.num_wanted()));
  say(socket, handshake.take_output());
  EXPECT_TRUE(is_closed(socket));
  EXPECT_TRUE(run([&] { return receiver.num_refused == 1; }));
}

// The recording is of a peer's handshake that succeeded.
TEST_F(RailStrangers, that_replay_a_handshake_get_no_proof) {
  const FileDescriptor recorded = connect();
  RailHandshake peer = RailHandshake::connector(rails_of_receiver().token, 1, 0, random_nonce());
  const size_t num_challenge_bytes = peer.num_wanted();
  const Bytes recording = shake_hands(recorded, peer);
  ASSERT_EQ(peer.state(), RailHandshake::State::kEstablished);
  const FileDescriptor socket = connect();
  say(socket, recording);
  EXPECT_EQ(hear(socket, num_challenge_bytes).size(), num_challenge_bytes);
  EXPECT_TRUE(is_closed(socket));
  EXPECT_TRUE(run([&] { return receiver.num_refused == 1; }));
  expect_rails_to_open();
}

// One byte now and then does not prolong the time of a handshake, and holds up no other.
TEST_F(RailStrangers, whose_handshakes_are_slow_are_dropped_in_time) {
  const FileDescriptor socket = connect();
  const Bytes hello = RailHandshake::connector(rails_of_receiver().token, 1, 0, random_nonce()).take_output();
  const auto began = std::chrono::steady_clock::now();
  say(socket, std::span(hello).first(1));
  expect_rails_to_open();
  size_t num_said = 1;
  EXPECT_TRUE(drive({&sender, &receiver}, [&] {
    const auto due = began + 200ms * num_said;
    if (num_said < hello.size() && std::chrono::steady_clock::now() >= due)
      (void)::send(socket.get(), &hello[num_said++], 1, MSG_NOSIGNAL);
    return receiver.num_refused >= 1;  // a busy machine may be too slow for a peer's handshake, too
  }));
  const auto took = std::chrono::steady_clock::now() - began;
  EXPECT_LT(num_said, hello.size()) << "the hello must not have been complete";
  EXPECT_GE(took, RailHandshakes::kTimeout - 100ms);
  EXPECT_TRUE(is_closed(socket));
}

TEST_F(RailStrangers, that_hang_up_or_say_nothing_do_not_disturb) {
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 10; ++i) {
    silent.push_back(connect());
    connect();
  }
  expect_rails_to_open();
}

// Far more than are served at a time: the deadline, shorter while all places are taken, makes room for peers.
TEST_F(RailStrangers, cost_a_bounded_number_of_connections_for_a_short_time) {
  const auto num_open = [] {
    const std::filesystem::directory_iterator folder("/proc/self/fd");
    return static_cast<size_t>(std::distance(begin(folder), end(folder)));
  };
  constexpr size_t kNumStrangers = 2 * RailHandshakes::kMostStrangers;
  const size_t num_before = num_open();
  std::vector<FileDescriptor> silent;
  while (silent.size() < kNumStrangers) silent.push_back(connect());
  drive({&sender, &receiver}, [] { return false; }, 100ms);
  EXPECT_LE(num_open(), num_before + kNumStrangers + RailHandshakes::kMostStrangers);
  expect_rails_to_open();
  EXPECT_TRUE(run([&] { return receiver.num_refused >= kNumStrangers - RailHandshakes::kMostStrangers; }));
}

// A process that knows the token, but sends what no rail of ours sends.
TEST_F(RailStrangers, whose_stripes_have_wrong_seals_are_dropped) {
  const FileDescriptor socket = connect();
  RailHandshake handshake = RailHandshake::connector(rails_of_receiver().token, 1, 0, random_nonce());
  (void)shake_hands(socket, handshake);
  ASSERT_EQ(handshake.state(), RailHandshake::State::kEstablished);
  StripeHeader header{.ticket = 1, .offset = 0, .num_bytes = 8, .num_carried = 8, .seal = 0};
  header.seal = StripeSealer(handshake.stripe_key()).next(header);
  say(socket, std::as_bytes(std::span(&header, 1)));  // late, for no message: its bytes are dropped
  say(socket, pattern(8, 1));
  say(socket, std::as_bytes(std::span(&header, 1)));  // repeated
  EXPECT_TRUE(is_closed(socket));
  EXPECT_TRUE(run([&] { return receiver.num_refused == 1; }));
}

}  // namespace
}  // namespace axon::transport
