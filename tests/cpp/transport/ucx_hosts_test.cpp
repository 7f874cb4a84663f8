// Tests UCX between hosts: two network namespaces connected by a veth pair, with one process in each. It uses TCP with
// error handling, and needs root and the `ip` tool.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>

#include "transport/process_group.hpp"
#include "transport/ucx/ucx.hpp"

namespace axon::transport {
namespace {

using Clock = std::chrono::steady_clock;

// Owns two network namespaces.
class TwoHosts {
 public:
  TwoHosts() {
    for (int host = 0; host < 2; ++host) run("ip netns add " + name(host));
    run("ip link add " + cable(0) + " netns " + name(0) + " type veth peer name " + cable(1) + " netns " + name(1));
    for (int host = 0; host < 2; ++host) {
      const std::string in_host = "ip -n " + name(host);
      run(in_host + " address add 10.213.77." + std::to_string(host + 1) + "/24 dev " + cable(host));
      run(in_host + " link set lo up");
      run(in_host + " link set " + cable(host) + " up");
    }
  }
  ~TwoHosts() {
    for (int host = 0; host < 2; ++host) run("ip netns delete " + name(host));
  }
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  bool exist() const noexcept { return exist_; }

  // Moves the calling process onto a host. UCX finds devices in /sys, which shows those of the namespace that mounted
  // it.
  void enter(int host) const {
    const int network = open(("/run/netns/" + name(host)).c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_EQ(setns(network, CLONE_NEWNET), 0);
    ::close(network);
    ASSERT_EQ(unshare(CLONE_NEWNS), 0);
    ASSERT_EQ(mount("", "/", nullptr, MS_SLAVE | MS_REC, nullptr), 0);
    ASSERT_EQ(mount("axon", "/sys", "sysfs", 0, nullptr), 0);
    await_carrier(host);
  }

 private:
  // Waits for the link: UCX ignores interfaces without a carrier.
  void await_carrier(int host) const {
    std::string state;
    for (const auto start = Clock::now(); state != "up" && Clock::now() - start < std::chrono::seconds(10);) {
      std::ifstream("/sys/class/net/" + cable(host) + "/operstate") >> state;
    }
    ASSERT_EQ(state, "up");
  }

  std::string name(int host) const { return "axon" + std::to_string(id_) + "host" + std::to_string(host); }
  std::string cable(int host) const { return "ax" + std::to_string(id_) + "e" + std::to_string(host); }
  void run(const std::string& command) { exist_ &= std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

  const pid_t id_ = getpid();
  bool exist_ = true;
};

class UcxHosts : public testing::Test {
 protected:
  void SetUp() override {
    if (!hosts.exist()) GTEST_SKIP() << "network namespaces cannot be made here: not root, or no ip tool";
  }

  std::unique_ptr<Transport> open_transport_on(int host) {
    hosts.enter(host);
    auto transport = open_ucx_transport();
    EXPECT_TRUE(transport.ok()) << transport.status().message();
    return std::move(transport).value();
  }

  TwoHosts hosts;
};

TEST_F(UcxHosts, deliver_every_size_both_ways) {
  const std::vector<size_t> sizes{0, 8, 300, 4096, 8000, 8059, 8060, 8061, 8200, 65536, size_t{16} << 20};
  ProcessGroup group(2, [&](int rank, ProcessGroup& group) {
    Node node(open_transport_on(rank));
    const PeerId peer = group.meet(rank, node, false)[1 - rank];
    for (const size_t num_bytes : sizes) node.send(peer, pattern(num_bytes, static_cast<uint64_t>(rank)));
    EXPECT_TRUE(drive({&node}, [&] { return node.all_sends_finished() && node.num_complete() == sizes.size(); }));
    for (const Arrival& arrival : node.arrivals) {
      EXPECT_EQ(arrival.bytes(), pattern(arrival.num_bytes, static_cast<uint64_t>(1 - rank)));
    }
    group.barrier(rank, node);
  });
  EXPECT_TRUE(group.wait());
}

// The survivor notices the loss whether it has sent messages before, has pending transfers, or has only received.
enum class Survivor { kIdle, kReceived, kSending };

class UcxHostsLosing : public UcxHosts, public testing::WithParamInterface<Survivor> {};

INSTANTIATE_TEST_SUITE_P(All, UcxHostsLosing,
                         testing::Values(Survivor::kIdle, Survivor::kReceived, Survivor::kSending));

TEST_P(UcxHostsLosing, a_killed_peer_is_reported_once_within_seconds) {
  ProcessGroup group(2, [&](int rank, ProcessGroup& group) {
    Node node(open_transport_on(rank));
    node.policy = Node::Policy::kHold;
    const PeerId peer = group.meet(rank, node, false)[1 - rank];
    if (rank == 1 && GetParam() == Survivor::kReceived) node.send(peer, pattern(8, 1));
    if (rank == 0 && GetParam() == Survivor::kReceived) drive({&node}, [&] { return node.num_complete() == 1; });
    drive({&node}, [] { return false; }, std::chrono::milliseconds(200));  // UCX connects in the background
    group.barrier(rank, node);
    if (rank == 1) {
      while (true) pause();
    }
    if (GetParam() == Survivor::kSending) {
      for (int i = 0; i < 100; ++i) node.send(peer, pattern(4000, 2));
      node.send(peer, pattern(size_t{64} << 20, 3));
    }
    group.kill(1);
    EXPECT_TRUE(
        drive({&node}, [&] { return !node.lost.empty() && node.all_sends_finished(); }, std::chrono::seconds(5)));
    const Transfer& send = node.send(peer, pattern(8, 4));
    EXPECT_TRUE(send.finished() && send.status.code() == ErrorCode::kPeerLost) << send.status.message();
    node.transport().drop_peer(peer);
    for (int i = 0; i < 1000; ++i) node.transport().progress();
    EXPECT_EQ(node.lost, std::vector<PeerId>{peer});
    const auto start = Clock::now();
    node.transport().flush(500);
    node.close();
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(1));
  });
  EXPECT_TRUE(group.wait());
}

}  // namespace
}  // namespace axon::transport
