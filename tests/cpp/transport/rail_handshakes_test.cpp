// Tests the thread that runs handshakes, without a transport.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>

#include "base/tcp_socket.hpp"
#include "comes_true.hpp"
#include "transport/rails/rail_handshakes.hpp"

namespace axon::transport {
namespace {

// Stays in a call, within the lock of the handlers, until it is told to leave.
class BusyHandler final : public RailHandshakes::Handler {
 public:
  void on_connected(const RailRequest&, FileDescriptor, const Digest&) noexcept override {}
  void on_not_connected(const RailRequest&, Status) noexcept override {}
  void on_accepted(uint64_t, uint32_t, FileDescriptor, const Digest&) noexcept override {}
  void on_stranger(const char*) noexcept override {
    is_called_.store(true);
    is_called_.notify_all();
    may_leave_.wait(false);
  }

  void await_call() noexcept { is_called_.wait(false); }
  void leave() noexcept {
    may_leave_.store(true);
    may_leave_.notify_all();
  }

 private:
  std::atomic<bool> is_called_{false};
  std::atomic<bool> may_leave_{false};
};

class Counter final : public RailHandshakes::Handler {
 public:
  void on_connected(const RailRequest&, FileDescriptor, const Digest&) noexcept override {}
  void on_not_connected(const RailRequest&, Status) noexcept override {}
  void on_accepted(uint64_t, uint32_t, FileDescriptor, const Digest&) noexcept override {}
  void on_stranger(const char*) noexcept override { ++num_strangers; }

  std::atomic<int> num_strangers{0};
};

std::unique_ptr<RailHandshakes> open_handshakes() {
  const std::string devices[] = {"lo"};
  return std::move(RailHandshakes::open(RailAddress::of_devices(devices, /*name=*/1).value())).value();
}

FileDescriptor connection_to(const RailHandshakes& handshakes) {
  const SystemAddress to = system_address(handshakes.address().addresses.front(), handshakes.address().port);
  FileDescriptor connection(::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(connection.get(), to.get(), to.num_bytes), 0) << last_error();
  return connection;
}

// Returns the connection, after a first frame that no rail sends.
FileDescriptor stranger_to(const RailHandshakes& handshakes) {
  FileDescriptor connection = connection_to(handshakes);
  const std::array<char, 56> frame{'n', 'o'};
  EXPECT_EQ(::send(connection.get(), frame.data(), frame.size(), MSG_NOSIGNAL), static_cast<ssize_t>(frame.size()));
  return connection;
}

// If two peers connect to each other at once, one of them gives its connection up.
TEST(RailHandshakes, that_are_given_up_are_not_reported_as_strangers) {
  const std::unique_ptr<RailHandshakes> opened = open_handshakes();
  RailHandshakes& handshakes = *opened;
  Counter counter;
  handshakes.serve(RailUse::kMessages, &counter);
  ASSERT_TRUE(handshakes.start().ok());
  connection_to(handshakes);  // closed before its first frame, and below after it
  {
    const FileDescriptor connection = connection_to(handshakes);
    auto peer = RailHandshake::connector(handshakes.address().token, /*name=*/2, kMessageRail, random_nonce());
    const std::vector<std::byte> hello = peer.take_output();
    ASSERT_EQ(::send(connection.get(), hello.data(), hello.size(), MSG_NOSIGNAL), static_cast<ssize_t>(hello.size()));
  }
  for (int i = 1; i <= 3; ++i) {
    const FileDescriptor stranger = stranger_to(handshakes);
    EXPECT_TRUE(comes_true([&] { return counter.num_strangers.load() >= i; }));
    EXPECT_EQ(counter.num_strangers.load(), i);
  }
  handshakes.serve(RailUse::kMessages, nullptr);
}

TEST(RailHandshakes, do_not_block_a_forked_child) {
  const std::unique_ptr<RailHandshakes> opened = open_handshakes();
  RailHandshakes& handshakes = *opened;
  BusyHandler handler;
  handshakes.serve(RailUse::kMessages, &handler);
  ASSERT_TRUE(handshakes.start().ok());
  const FileDescriptor stranger = stranger_to(handshakes);
  handler.await_call();
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // ends a child that waits for the lock
    handshakes.serve(RailUse::kMessages, nullptr);
    _exit(0);
  }
  int ended = 0;
  EXPECT_EQ(waitpid(child, &ended, 0), child);
  EXPECT_TRUE(WIFEXITED(ended)) << "the child waited for a lock of its parent";
  handler.leave();
  handshakes.serve(RailUse::kMessages, nullptr);
}

}  // namespace
}  // namespace axon::transport
