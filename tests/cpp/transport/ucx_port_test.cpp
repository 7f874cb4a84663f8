// Writes arbitrary bytes to the ports on which UCX listens, over many connections. Messages between peers must not be
// affected.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "base/file_descriptor.hpp"
#include "base/scoped_variable.hpp"
#include "transport/node.hpp"
#include "transport/ucx/ucx.hpp"

namespace axon::transport {
namespace {

std::set<std::string> own_socket_inodes() {
  std::set<std::string> inodes;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  return inodes;
}

// Returns this process's listening IPv4 sockets.
std::vector<sockaddr_in> listeners() {
  static constexpr const char* kListening = "0A";
  const std::set<std::string> own = own_socket_inodes();
  std::vector<sockaddr_in> found;
  std::ifstream table("/proc/self/net/tcp");
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::vector<std::string> word(10);
    for (std::string& each : word) words >> each;
    if (word[3] != kListening || !own.contains(word[9])) continue;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = static_cast<in_addr_t>(std::stoul(word[1].substr(0, 8), nullptr, 16));
    address.sin_port = htons(static_cast<uint16_t>(std::stoul(word[1].substr(9), nullptr, 16)));
    found.push_back(address);
  }
  return found;
}

void say(const sockaddr_in& address, const std::vector<uint8_t>& bytes) {
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  [[maybe_unused]] const ssize_t sent = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

// Set for all of UCX, although UCX reads only its own variables through a prefix.
TEST(UcxPort, is_where_our_variables_put_it) {
  const ScopedVariable over("AXON_UCX_TLS", "tcp,self");
  const ScopedVariable range("AXON_UCX_TCP_PORT_RANGE", "23000-23999");
  auto transport = open_ucx_transport();
  ASSERT_TRUE(transport.ok()) << transport.status().message();
  const std::vector<sockaddr_in> ports = listeners();
  ASSERT_FALSE(ports.empty());
  for (const sockaddr_in& port : ports) EXPECT_EQ(ntohs(port.sin_port) / 1000, 23);
}

TEST(UcxPort, foreign_bytes_disturb_no_peer) {
  const UcxOptions over_tcp{.settings = {{"TLS", "tcp,self"}}};
  Node first(open_ucx_transport(over_tcp).value());
  Node second(open_ucx_transport(over_tcp).value());
  const PeerId peer = first.meet(second, false);
  const std::vector<sockaddr_in> ports = listeners();
  ASSERT_FALSE(ports.empty());
  std::mt19937_64 random(1);
  for (size_t round = 0; round < 40; ++round) {
    std::vector<uint8_t> bytes(round * round);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    for (const sockaddr_in& port : ports) say(port, bytes);
    first.send(peer, pattern(1000 + round * 5000, round), static_cast<uint32_t>(round));
    ASSERT_TRUE(drive({&first, &second}, [&] { return second.num_complete() == round + 1; })) << "round " << round;
  }
  for (size_t round = 0; round < 40; ++round) {
    EXPECT_EQ(second.arrivals[round].bytes(), pattern(1000 + round * 5000, round));
  }
  EXPECT_TRUE(first.lost.empty());
  EXPECT_TRUE(second.lost.empty());
}

}  // namespace
}  // namespace axon::transport
