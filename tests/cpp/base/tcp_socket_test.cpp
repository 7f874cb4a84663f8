// Tests the options of sockets.
#include "base/tcp_socket.hpp"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <chrono>

#include "transport/rails/silence.hpp"

namespace axon {
namespace {

using std::chrono::seconds;

seconds option_of(const FileDescriptor& socket, int option) {
  int value = 0;
  socklen_t num_bytes = sizeof value;
  EXPECT_EQ(getsockopt(socket.get(), IPPROTO_TCP, option, &value, &num_bytes), 0);
  return seconds(value);
}

// Otherwise, processes that lose each other with their hosts' link would find out at different times.
TEST(TcpSocket, idle_connections_notice_silence_as_soon_as_busy_ones) {
  const FileDescriptor socket = open_tcp_socket(AF_INET);
  watch_for_silence(socket);
  const seconds when_idle =
      option_of(socket, TCP_KEEPIDLE) + option_of(socket, TCP_KEEPCNT).count() * option_of(socket, TCP_KEEPINTVL);
  const seconds when_busy = transport::Silence::kMost + transport::Silence::kLookInterval;
  EXPECT_EQ(when_idle, when_busy);
}

}  // namespace
}  // namespace axon
