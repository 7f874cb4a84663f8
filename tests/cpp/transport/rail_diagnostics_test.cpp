// The number of rails to a peer, and the reasons that a transport gives for it.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "base/tcp_socket.hpp"
#include "transport/loopback/loopback.hpp"
#include "transport/node.hpp"
#include "transport/rails/rail_count.hpp"
#include "transport/rails/rail_transport.hpp"

namespace axon::transport {
namespace {

constexpr size_t kLong = size_t{3} << 20;

TEST(NumRails, follow_the_cores_of_a_process) {
  EXPECT_EQ(num_rails_for(1, 1, false), 1U);
  EXPECT_EQ(num_rails_for(2, 8, false), 1U) << "there are never none";
  EXPECT_EQ(num_rails_for(7, 1, false), 1U);
  EXPECT_EQ(num_rails_for(8, 1, false), 2U);
  EXPECT_EQ(num_rails_for(8, 2, false), 1U);
  EXPECT_EQ(num_rails_for(32, 2, false), 4U);
  EXPECT_EQ(num_rails_for(256, 1, false), kMostByDefault);
}

TEST(NumRails, are_two_on_few_cores_if_the_kernel_paces_them) {
  EXPECT_EQ(num_rails_for(1, 1, true), 1U);
  EXPECT_EQ(num_rails_for(2, 1, true), 2U);
  EXPECT_EQ(num_rails_for(2, 2, true), 1U);
  EXPECT_EQ(num_rails_for(2, 8, true), 1U);
  EXPECT_EQ(num_rails_for(7, 1, true), 2U);
  EXPECT_EQ(num_rails_for(32, 2, true), 4U);
}

// So a host's rails leave most of its cores to computation, unless each process has only one.
TEST(NumRails, of_all_processes_take_at_most_a_quarter_of_the_cores) {
  for (size_t num_cores = 1; num_cores <= 256; ++num_cores) {
    for (size_t num_processes = 1; num_processes <= 64; ++num_processes) {
      const size_t number = num_rails_for(num_cores, num_processes, false);
      EXPECT_TRUE(number == 1 || number * num_processes * kCoresPerRail <= num_cores);
      EXPECT_LE(num_rails_for(num_cores, num_processes + 1, false), number) << "more processes, fewer rails";
      EXPECT_LE(number, num_rails_for(num_cores, num_processes, true));
    }
  }
}

struct RailDiagnostics : testing::Test {
  static RailOptions over(const char* device, size_t num_rails) {
    return {.num_rails = num_rails, .devices = {device}, .use = RailOptions::Use::kToAll};
  }
  // Sends long messages until the condition holds.
  void await(Node& sender, Node& receiver, PeerId peer, const std::function<bool()>& condition) {
    ASSERT_TRUE(drive({&sender, &receiver}, [&] {
      if (!condition() && sender.all_sends_finished()) sender.send(peer, pattern(kLong, 0));
      return condition() && sender.all_sends_finished();
    }));
  }

  LoopbackFabric fabric{FaultPlan{}};
};

TEST_F(RailDiagnostics, count_open_rails_as_lanes) {
  Node sender{with_rails(fabric.make_transport(), over("lo", 3))};
  Node receiver{with_rails(fabric.make_transport(), over("lo", 3))};
  const PeerId peer = sender.meet(receiver, false);
  receiver.meet(sender, false);
  EXPECT_NE(sender.transport().obstacles(peer).front().find("3 rails to it will be opened"), std::string::npos);
  const Lane rail{.name = "rail", .device = "lo to 127.0.0.1"};
  const auto num_rails = [&] { return std::ranges::count(sender.transport().lanes(peer).value(), rail); };
  EXPECT_EQ(num_rails(), 0);
  await(sender, receiver, peer, [&] { return num_rails() == 3; });
  EXPECT_EQ(sender.transport().lanes(peer).value().size(), 4U) << "and the network's";
  receiver.close();
  EXPECT_TRUE(drive({&sender}, [&] { return num_rails() == 0; })) << "rails that broke are no lanes";
  EXPECT_NE(sender.transport().obstacles(peer).front().find("3 rails to it cannot be opened"), std::string::npos);
}

TEST_F(RailDiagnostics, name_the_address_that_refuses) {
  Node sender{with_rails(fabric.make_transport(), over("lo", 1))};
  Node receiver{with_rails(fabric.make_transport(), over("lo", 1))};
  std::vector<std::byte> address(receiver.transport().address().begin(), receiver.transport().address().end());
  const size_t port = address.size() - sizeof(uint32_t) - sizeof(IpAddress) - 8;
  address[port] = std::byte{1};  // of the two bytes of the port, which becomes 1, without a listener
  address[port + 1] = std::byte{0};
  const PeerId peer = sender.transport().add_peer(address, false).value();
  receiver.meet(sender, false);
  std::string text;
  await(sender, receiver, peer, [&] {
    text = sender.transport().obstacles(peer).front();
    return text.find("cannot be opened") != std::string::npos;
  });
  EXPECT_NE(text.find("1 rail to it cannot be opened: 127.0.0.1:1: "), std::string::npos) << text;
}

// On two cores, rails share them with the progress owner. Those of lo are fast.
TEST_F(RailDiagnostics, leave_fast_links_to_the_network_if_cores_are_few) {
  if (congestion_control_of(open_tcp_socket(AF_INET)) == "bbr") GTEST_SKIP() << "rails are faster with bbr";
  cpu_set_t all;
  cpu_set_t two;
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  CPU_ZERO(&two);
  for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&two) < 2; ++core) {
    if (CPU_ISSET(core, &all)) CPU_SET(core, &two);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof two, &two), 0);
  const RailOptions options{.num_rails = {}, .devices = {"lo"}, .use = RailOptions::Use::kToAll};
  Node sender{with_rails(fabric.make_transport(), options)};
  Node receiver{with_rails(fabric.make_transport(), options)};
  ASSERT_EQ(sched_setaffinity(0, sizeof all, &all), 0);
  const PeerId peer = sender.meet(receiver, false);
  receiver.meet(sender, false);
  await(sender, receiver, peer, [&] {
    const std::vector<std::string> obstacles = sender.transport().obstacles(peer);
    return std::ranges::any_of(obstacles, [](const std::string& text) { return text.starts_with("its link is fast"); });
  });
}

TEST_F(RailDiagnostics, tell_which_end_has_no_rails) {
  Node sender{with_rails(fabric.make_transport(), over("lo", 1))};
  Node without{with_rails(fabric.make_transport(), over("lo", 0))};
  Node elsewhere{with_rails(fabric.make_transport(), over("no-such-device", 1))};
  EXPECT_EQ(sender.transport().obstacles(sender.meet(without, false)), std::vector<std::string>{"it accepts no rails"});
  EXPECT_EQ(without.transport().obstacles(without.meet(sender, false)), std::vector<std::string>{"AXON_RAILS is 0"});
  EXPECT_EQ(elsewhere.transport().obstacles(elsewhere.meet(sender, false)),
            std::vector<std::string>{"none of the devices is up: no-such-device"});
}

TEST_F(RailDiagnostics, tell_which_network_needs_none) {
  const RailOptions options{.num_rails = 1, .devices = {"lo"}};
  Node sender{with_rails(fabric.make_transport(), options)};
  Node receiver{with_rails(fabric.make_transport(), options)};
  const auto obstacles = sender.transport().obstacles(sender.meet(receiver, false));
  EXPECT_EQ(obstacles, std::vector<std::string>{"UCX carries long messages, over loopback ()"});
}

}  // namespace
}  // namespace axon::transport
