// Listeners and connectors over sockets of this host.
#include "rpc/core/handshake/listener.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <set>
#include <string>
#include <thread>

#include "base/tcp_socket.hpp"
#include "rpc/core/handshake/listener_address.hpp"
#include "rpc/core/handshake/sockets.hpp"

namespace axon::rpc {
namespace {

using namespace std::chrono_literals;
using Clock = sync::Clock;

Secret secret_of(const std::string& text) {
  return Secret::from(std::as_bytes(std::span(text))).value();
}

const Secret kSecret = secret_of("0123456789abcdef");

EndpointInfo named(const std::string& name, uint64_t key = 1) {
  return {.name = name, .incarnation = 1, .key = key, .address = {std::byte{1}}};
}

constexpr uint64_t kIncarnation = 17;

Result<Connected> connect_to_listener(const SocketAddress& socket_address, const Secret& secret,
                                      const EndpointInfo& own, Clock::time_point deadline) {
  Result<FoundListener> found = FoundListener::find(socket_address, secret, own, deadline);
  if (!found.ok()) return std::move(found.status());
  return std::move(found).value().connect(deadline);
}

bool is_hung_up(const FileDescriptor& socket) {
  char byte;
  return wait_for(socket, POLLIN, Clock::now() + 30s) && recv(socket.get(), &byte, 1, 0) <= 0;
}

class ListenerTest : public testing::Test {
 protected:
  void open(const Listener::Limits& limits = {}) {
    auto opened = Listener::open({"127.0.0.1", 0}, kSecret, kIncarnation, limits,
                                 [this](Connected connected) { return met(connected); });
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    listener_ = std::move(opened).value();
  }

  Result<EndpointInfo> met(Connected& connected) {
    if (connected.peer.name == "unwanted") return Status(ErrorCode::kResourceExhausted, "no room");
    const std::lock_guard lock(mutex_);
    connected_.push_back(std::move(connected));
    return named("server", 100 + connected_.back().peer.key);
  }

  SocketAddress socket_address() const { return {"127.0.0.1", listener_->port()}; }
  Result<Connected> connect(const EndpointInfo& own, const Secret& secret = kSecret) {
    return connect_to_listener(socket_address(), secret, own, Clock::now() + 30s);
  }
  // Returns a connected socket that has not sent anything.
  FileDescriptor connect_silently() {
    Result<FileDescriptor> socket = connect_to(socket_address(), Clock::now() + 30s);
    EXPECT_TRUE(socket.ok()) << socket.status().message();
    return std::move(socket).value();
  }
  void expect_count(uint64_t Listener::Counts::* what, uint64_t number) {
    const Clock::time_point deadline = Clock::now() + 30s;
    while (listener_->counts().*what < number && Clock::now() < deadline) std::this_thread::yield();
    EXPECT_GE(listener_->counts().*what, number);
  }

  std::unique_ptr<Listener> listener_;
  std::mutex mutex_;
  std::vector<Connected> connected_;
};

TEST_F(ListenerTest, two_meet_and_the_socket_tells_when_the_other_is_gone) {
  open();
  Result<Connected> connected = connect(named("worker", 7));
  ASSERT_TRUE(connected.ok()) << connected.status().message();
  EXPECT_EQ(connected.value().peer, named("server", 107));
  ASSERT_EQ(connected_.size(), 1u);
  EXPECT_EQ(connected_[0].peer, named("worker", 7));
  pollfd quiet{.fd = connected_[0].socket.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&quiet, 1, 0), 0);
  connected.value().socket = FileDescriptor();
  EXPECT_TRUE(is_hung_up(connected_[0].socket));
}

TEST_F(ListenerTest, a_connector_that_knows_the_listener_may_leave_without_a_trace) {
  open();
  {
    Result<FoundListener> found = FoundListener::find(socket_address(), kSecret, named("worker"), Clock::now() + 30s);
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(found.value().identity().incarnation, kIncarnation);
    const Secret key = address_key_of(kSecret, found.value().identity().place);
    EXPECT_TRUE(std::ranges::equal(key.bytes(), listener_->address_key().bytes()));
  }
  ASSERT_TRUE(connect(named("next")).ok());  // served after the end of the one before
  expect_count(&Listener::Counts::num_met, 1);
  EXPECT_EQ(connected_.size(), 1u);
  EXPECT_EQ(listener_->counts().num_hung_up, 0u);
}

TEST_F(ListenerTest, a_hundred_meet_at_once) {
  open({.num_pending = 16,
        .handshake_timeout = 30s,
        .handshake_timeout_when_full = 30s});  // most connections wait in the kernel's queue
  std::vector<std::thread> threads;
  std::vector<uint64_t> told(100);
  for (uint64_t i = 0; i < told.size(); ++i) {
    threads.emplace_back([&, i] {
      Result<Connected> connected = connect(named("worker", i));
      if (connected.ok()) told[i] = connected.value().peer.key;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (uint64_t i = 0; i < told.size(); ++i) EXPECT_EQ(told[i], 100 + i);
  std::set<uint64_t> keys;
  for (const Connected& connected : connected_) keys.insert(connected.peer.key);
  EXPECT_EQ(keys.size(), told.size());
  expect_count(&Listener::Counts::num_met, told.size());
}

TEST_F(ListenerTest, a_refused_peer_hears_why) {
  open();
  Status wrong = std::move(connect(named("worker"), secret_of("fedcba9876543210")).status());
  EXPECT_EQ(wrong.code(), ErrorCode::kUnauthenticated);
  EXPECT_EQ(wrong.message(), socket_address().text() + " refuses: the secrets of the two ends differ");
  Status refused = std::move(connect(named("unwanted")).status());
  EXPECT_EQ(refused.code(), ErrorCode::kResourceExhausted);
  EXPECT_EQ(refused.message(), socket_address().text() + " refuses: no room");
  expect_count(&Listener::Counts::num_wrong_secret, 1);
  expect_count(&Listener::Counts::num_refused, 1);
  EXPECT_TRUE(connect(named("worker")).ok());
}

TEST_F(ListenerTest, foreign_bytes_are_dropped_without_an_answer) {
  open();
  for (const std::string bytes : {"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01 a hello of TLS", "axon in other words"}) {
    FileDescriptor socket = connect_silently();
    send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    EXPECT_TRUE(is_hung_up(socket)) << bytes;
  }
  FileDescriptor gone = connect_silently();
  gone = FileDescriptor();
  expect_count(&Listener::Counts::num_malformed, 3);
  expect_count(&Listener::Counts::num_hung_up, 1);
  EXPECT_TRUE(connect(named("worker")).ok());
}

TEST_F(ListenerTest, a_silent_connection_is_dropped_in_time) {
  open({.num_pending = 256, .handshake_timeout = 50ms, .handshake_timeout_when_full = 50ms});
  FileDescriptor silent = connect_silently();
  FileDescriptor slow = connect_silently();
  send(slow.get(), "axhs", 4, MSG_NOSIGNAL);
  EXPECT_TRUE(is_hung_up(silent));
  EXPECT_TRUE(is_hung_up(slow));
  expect_count(&Listener::Counts::num_late, 2);
}

// Four times as many silent connections as there is room for: others still get in.
TEST_F(ListenerTest, silent_connections_give_way) {
  open({.num_pending = 8, .handshake_timeout = 1h, .handshake_timeout_when_full = 10ms});
  std::vector<FileDescriptor> connections;
  for (int i = 0; i < 32; ++i) connections.push_back(connect_silently());
  Result<Connected> connected = connect(named("worker"));
  EXPECT_TRUE(connected.ok()) << connected.status().message();
  EXPECT_GE(listener_->counts().num_late, 24u);
}

TEST_F(ListenerTest, no_process_listens_or_none_answers) {
  open();
  const SocketAddress closed = socket_address();
  listener_->close();
  listener_->close();
  const auto attempt = [](const SocketAddress& socket_address, Clock::duration time) {
    return std::move(connect_to_listener(socket_address, kSecret, named("worker"), Clock::now() + time).status());
  };
  Status refused = attempt(closed, 30s);
  EXPECT_EQ(refused.code(), ErrorCode::kTransport);
  EXPECT_EQ(refused.message(), closed.text() + " cannot be reached: Connection refused");

  FileDescriptor unaccepting = listen_at({"127.0.0.1", 0}, 8).value();
  const SocketAddress silent{"127.0.0.1", port_of(unaccepting)};
  Status late = attempt(silent, 20ms);
  EXPECT_EQ(late.code(), ErrorCode::kTimeout);
  EXPECT_EQ(late.message(), silent.text() + " has not completed the handshake by the deadline");
  EXPECT_EQ(attempt({"host.invalid", 1}, 30s).code(), ErrorCode::kUnknownHost);
  EXPECT_EQ(attempt({"", 1}, 30s).message(), "host '' is not known: Name or service not known");
}

TEST_F(ListenerTest, the_key_of_an_address_opens_this_listener_alone_and_says_nothing_of_the_secret) {
  open();
  const Secret key = listener_->address_key();
  EXPECT_FALSE(std::ranges::equal(key.bytes(), kSecret.bytes()));
  EXPECT_TRUE(connect(named("worker", 1), key).ok());
  EXPECT_TRUE(connect(named("worker", 2)).ok());
  const SocketAddress here = socket_address();
  auto elsewhere =
      Listener::open({"127.0.0.1", 0}, kSecret, kIncarnation, {}, [](Connected) { return named("other"); });
  ASSERT_TRUE(elsewhere.ok());
  const SocketAddress other{"127.0.0.1", elsewhere.value()->port()};
  EXPECT_EQ(connect_to_listener(other, key, named("worker"), Clock::now() + 30s).status().code(),
            ErrorCode::kUnauthenticated);
  listener_.reset();
  connected_.clear();
  auto again =
      Listener::open(here, kSecret, kIncarnation, {}, [](Connected) { return named("again"); });  // after a restart
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_TRUE(connect_to_listener(here, key, named("worker"), Clock::now() + 30s).ok());
}

TEST_F(ListenerTest, a_listener_that_closes_hangs_up_on_pending_connections) {
  open();
  FileDescriptor waiting = connect_silently();
  listener_->close();
  EXPECT_TRUE(is_hung_up(waiting));
}

TEST_F(ListenerTest, a_port_is_taken_once_and_free_again_at_once) {
  open();
  const SocketAddress taken = socket_address();
  Result<Connected> connected = connect(named("worker"));
  auto second = Listener::open(taken, kSecret, kIncarnation, {}, [](Connected) { return named("second"); });
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().message(), "cannot listen at " + taken.text() + ": Address already in use");
  listener_.reset();
  connected_.clear();  // this end closes first, so its port lingers
  auto third = Listener::open(taken, kSecret, kIncarnation, {}, [](Connected) { return named("third"); });
  EXPECT_TRUE(third.ok()) << third.status().message();
}

TEST_F(ListenerTest, runs_out_of_descriptors_says_so_and_recovers) {
  open();
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  rlimit few = before;
  few.rlim_cur =
      static_cast<rlim_t>(connect_silently().get());  // the first free descriptor, once it is closed on both sides
  expect_count(&Listener::Counts::num_hung_up, 1);
  setrlimit(RLIMIT_NOFILE, &few);
  EXPECT_FALSE(connect_to(socket_address(), Clock::now() + 30s).ok());
  ++few.rlim_cur;
  setrlimit(RLIMIT_NOFILE, &few);
  const Result<Connected> refused = connect(named("worker"));  // through the listener's spare descriptor
  EXPECT_EQ(refused.status().code(), ErrorCode::kResourceExhausted);
  EXPECT_NE(
      refused.status().message().find("refuses: the runtime cannot serve another connection: Too many open files"),
      std::string::npos)
      << refused.status().message();
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(connect(named("worker")).ok());
}

TEST_F(ListenerTest, a_fork_closes_its_copy_and_the_listener_goes_on) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer ends a child that detaches a thread of its parent";
#endif
  open();
  const pid_t child = fork();
  if (child == 0) {
    listener_.reset();
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(connect(named("worker")).ok());
}

TEST(SocketAddress, loopback_and_text) {
  EXPECT_TRUE(is_loopback("127.0.0.1").value());
  EXPECT_TRUE(is_loopback("127.8.9.10").value());
  EXPECT_TRUE(is_loopback("localhost").value());
  EXPECT_TRUE(is_loopback("::1").value());
  EXPECT_FALSE(is_loopback("0.0.0.0").value());
  EXPECT_FALSE(is_loopback("::").value());
  EXPECT_FALSE(is_loopback("192.0.2.1").value());
  EXPECT_FALSE(is_loopback("host.invalid").ok());
  EXPECT_EQ((SocketAddress{"::1", 80}.text()), "[::1]:80");
  EXPECT_EQ((SocketAddress{"localhost", 80}.text()), "localhost:80");
}

}  // namespace
}  // namespace axon::rpc
