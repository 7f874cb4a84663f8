// Tests rails for messages while the kernel has no memory for sockets: calls of the system fail as it would let them.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "transport/node.hpp"
#include "transport/sockets/socket_transport.hpp"

namespace {

std::atomic<int> num_failures_of_connect{0};
std::atomic<int> num_failures_of_recvmsg{0};
std::atomic<int> num_failures_of_sendmsg{0};

// Returns whether the next call is to fail.
bool is_to_fail(std::atomic<int>& num_failures) {
  if (num_failures <= 0 || num_failures-- <= 0) return false;
  errno = num_failures % 2 == 0 ? ENOBUFS : ENOMEM;
  return true;
}

}  // namespace

// These stand for the C library's in this program.
extern "C" int connect(int socket, const sockaddr* address, socklen_t length) {
  if (is_to_fail(num_failures_of_connect)) return -1;
  return static_cast<int>(syscall(SYS_connect, socket, address, length));
}

extern "C" ssize_t recvmsg(int socket, msghdr* message, int flags) {
  if (is_to_fail(num_failures_of_recvmsg)) return -1;
  return syscall(SYS_recvmsg, socket, message, flags);
}

extern "C" ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  if (is_to_fail(num_failures_of_sendmsg)) return -1;
  return syscall(SYS_sendmsg, socket, message, flags);
}

namespace axon::transport {
namespace {

const std::string kDevices[] = {"lo"};

std::unique_ptr<SocketTransport> open() {
  return std::move(SocketTransport::open(kDevices)).value();
}

class SocketsWithoutMemory : public testing::Test {
 protected:
  bool run(const std::function<bool()>& condition) { return drive({&first, &second}, condition); }

  Node first{open()};
  Node second{open()};
};

TEST_F(SocketsWithoutMemory, lose_no_peer_that_they_cannot_connect) {
  const PeerId to_second = first.meet(second, true);
  second.meet(first, true);
  num_failures_of_connect = 1;
  const Transfer& early = first.send(to_second, pattern(10, 1));
  ASSERT_TRUE(run([&] { return early.finished(); }));
  EXPECT_EQ(early.status.code(), ErrorCode::kResourceExhausted) << early.status.message();
  EXPECT_TRUE(first.lost.empty());
  const Transfer& late = first.send(to_second, pattern(10, 2));
  ASSERT_TRUE(run([&] { return late.finished() && second.num_complete() == 1; }));
  EXPECT_TRUE(late.status.ok()) << late.status.message();
}

TEST_F(SocketsWithoutMemory, go_on_once_there_is_some) {
  const PeerId to_second = first.meet(second, true);
  const PeerId to_first = second.meet(first, true);
  first.send(to_second, pattern(10, 1));
  ASSERT_TRUE(run([&] { return second.num_complete() == 1; }));
  for (uint32_t i = 2; i < 20; ++i) {
    num_failures_of_recvmsg = 3;
    num_failures_of_sendmsg = 3;
    first.send(to_second, pattern(i % 2 == 0 ? 10 : size_t{300} << 10, i), i);
    second.send(to_first, pattern(i % 2 == 0 ? size_t{300} << 10 : 10, i), i);
    ASSERT_TRUE(run([&] { return second.num_complete() == i && first.num_complete() == i - 1; })) << i;
  }
  EXPECT_LE(num_failures_of_recvmsg, 0);
  EXPECT_LE(num_failures_of_sendmsg, 0);
  EXPECT_TRUE(first.lost.empty() && second.lost.empty());
}

}  // namespace
}  // namespace axon::transport
