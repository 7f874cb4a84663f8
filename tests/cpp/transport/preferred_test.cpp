// Tests processes of which some have a preferred network: each pair finds a network that both have. The preferred one
// is UCX over loopback devices, in place of UCX over RDMA.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "transport/networks.hpp"
#include "transport/node.hpp"
#include "transport/preferred/preferred.hpp"
#include "transport/rails/rails.hpp"
#include "transport/sockets/sockets.hpp"

namespace axon::transport {
namespace {

constexpr size_t kLong = size_t{300} << 10;

SocketNetwork open_common() {
  const std::string devices[] = {"lo"};
  return std::move(open_sockets(devices)).value();
}

std::unique_ptr<Transport> open_both() {
  return std::move(with_preferred(kUcxTcp.make()->make_transport(), open_common())).value();
}

class Preferred : public testing::Test {
 protected:
  // Sends short and long messages both ways.
  void exchange(Node& one, PeerId to_other, Node& other, PeerId to_one) {
    one.arrivals.clear();
    other.arrivals.clear();
    for (const size_t num_bytes : {size_t{8}, size_t{60'000}, kLong}) {
      one.send(to_other, pattern(num_bytes, 1));
      other.send(to_one, pattern(num_bytes, 2));
    }
    ASSERT_TRUE(drive({&one, &other}, [&] {
      return one.num_complete() == 3 && other.num_complete() == 3 && one.all_sends_finished() &&
             other.all_sends_finished();
    }));
    for (const Arrival& arrival : one.arrivals) EXPECT_EQ(arrival.bytes(), pattern(arrival.num_bytes, 2));
    for (const Arrival& arrival : other.arrivals) EXPECT_EQ(arrival.bytes(), pattern(arrival.num_bytes, 1));
  }

  static std::string device_to(Node& node, PeerId peer) {
    const auto lanes = node.transport().lanes(peer);
    return lanes.ok() && !lanes.value().empty() ? lanes.value().front().device : "";
  }

  Node both{open_both()};
  Node another{open_both()};
  Node common{open_common().transport};
};

TEST_F(Preferred, carries_messages_between_hosts_that_have_it) {
  Node ucx{kUcxTcp.make()->make_transport()};
  Node plain{kUcxTcp.make()->make_transport()};
  const std::string device = device_to(ucx, ucx.meet(plain, false));
  ASSERT_FALSE(device.empty());
  const PeerId there = both.meet(another, false);
  const PeerId back = another.meet(both, false);
  EXPECT_EQ(device_to(both, there), device);
  exchange(both, there, another, back);
}

TEST_F(Preferred, leaves_peers_without_it_to_the_common_network) {
  const PeerId first = both.meet(another, false);  // so that a network's numbers differ from ours
  const PeerId there = both.meet(common, false);
  const PeerId back = common.meet(both, false);
  EXPECT_EQ(there, first + 1);
  exchange(both, there, common, back);
  exchange(both, first, another, another.meet(both, false));
}

TEST_F(Preferred, leaves_neighbours_to_the_common_network) {
  const PeerId there = both.meet(another, true);
  const PeerId back = another.meet(both, true);
  exchange(both, there, another, back);
}

// One end cannot use the preferred network, as if its device did not reach the other one.
TEST_F(Preferred, need_not_be_chosen_by_both_ends) {
  const PeerId there = both.meet(another, false);
  const auto address = both.transport().address();
  const size_t num_preferred = preceding_sockets(address).size();
  ASSERT_GT(num_preferred, 0u);
  Bytes unreachable(address.begin(), address.end());
  std::fill_n(unreachable.begin(), num_preferred, std::byte{0xEE});
  const PeerId back = another.transport().add_peer(unreachable, false).value();
  exchange(both, there, another, back);
}

TEST_F(Preferred, reports_losses_of_either_network_by_our_number) {
  const PeerId by_ucx = both.meet(another, false);
  another.meet(both, false);
  const PeerId by_rails = both.meet(common, false);
  exchange(both, by_rails, common, common.meet(both, false));
  common.close();
  ASSERT_TRUE(drive({&both, &another}, [&] { return both.lost.size() == 1; }));
  EXPECT_EQ(both.lost.front(), by_rails);
  both.send(by_ucx, pattern(10, 1));
  another.close();
  ASSERT_TRUE(drive({&both}, [&] {
    both.send(by_ucx, pattern(10, 2));
    return both.lost.size() == 2;
  }));
  EXPECT_EQ(both.lost.back(), by_ucx);
}

// As the engine has them: rails for long messages, at the port of the common network.
TEST_F(Preferred, works_below_rails) {
  const auto with_rails_above = [](std::unique_ptr<Transport> network, RailHandshakes* port) {
    return with_rails(std::move(network), {.num_rails = 2, .devices = {"lo"}, .port = port});
  };
  SocketNetwork sockets = open_common();
  RailHandshakes* const port = sockets.port;
  Node one{
      with_rails_above(std::move(with_preferred(kUcxTcp.make()->make_transport(), std::move(sockets))).value(), port)};
  SocketNetwork alone = open_common();
  RailHandshakes* const other_port = alone.port;
  Node other{with_rails_above(std::move(alone.transport), other_port)};
  const PeerId there = one.meet(other, false);
  const PeerId back = other.meet(one, false);
  for (int round = 0; round < 3; ++round) exchange(one, there, other, back);
}

TEST_F(Preferred, refuses_an_address_of_ucx_alone) {
  Node ucx{kUcxTcp.make()->make_transport()};
  const auto added = both.transport().add_peer(ucx.transport().address(), false);
  ASSERT_FALSE(added.ok());
  EXPECT_NE(added.status().message().find("AXON_TRANSPORTS must name ucx"), std::string::npos)
      << added.status().message();
  const auto other_way = ucx.transport().add_peer(both.transport().address(), false);
  ASSERT_FALSE(other_way.ok());
  EXPECT_NE(other_way.status().message().find("AXON_TRANSPORTS must name ucx"), std::string::npos)
      << other_way.status().message();
}

}  // namespace
}  // namespace axon::transport
