// Tests how the engine finds out whether UCX has a network other than TCP.
#include <gtest/gtest.h>

#include <algorithm>

#include "transport/ucx/rdma_lanes.hpp"

namespace axon::transport {
namespace {

// As UCX 1.22 prints it on a host with InfiniBand.
constexpr const char* kInfo = R"(#
# UCP context
#
#     component 0  :  self
#     component 1  :  tcp
#
#            md 0  :  component 0  self
#
#      resource 0  :  md 0  dev 0  flags -- self/memory
#      resource 1  :  md 1  dev 1  flags -- tcp/eth0
#      resource 2  :  md 2  dev 2  flags -- rc_mlx5/mlx5_0:1
#      resource 3  :  md 2  dev 2  flags a- ud_mlx5/mlx5_0:1
#      resource 4  :  md 3  dev 3  flags -- cma/memory
#
)";

TEST(RdmaLanes, are_those_over_rdma_devices) {
  const std::vector<Lane> lanes = lanes_in(kInfo);
  ASSERT_EQ(lanes.size(), 5u);
  EXPECT_EQ(lanes[1], (Lane{.name = "tcp", .device = "eth0"}));
  const std::string devices[] = {"mlx5_0", "mlx5_1"};
  const std::vector<Lane> found = lanes_over(devices, lanes);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0], (Lane{.name = "rc_mlx5", .device = "mlx5_0:1"}));
  EXPECT_EQ(found[1], (Lane{.name = "ud_mlx5", .device = "mlx5_0:1"}));
  const std::string others[] = {"mlx5_1"};
  EXPECT_TRUE(lanes_over(others, lanes).empty());
  EXPECT_TRUE(lanes_over({}, lanes).empty());
}

TEST(RdmaLanes, are_not_found_in_other_text) {
  EXPECT_TRUE(lanes_in("").empty());
  EXPECT_TRUE(lanes_in("# resource\n# resource 1 : no lane\nresource/x\n#").empty());
}

// If a UCX printed its devices otherwise, its RDMA devices would not be found.
TEST(RdmaLanes, are_printed_by_this_ucx_as_expected) {
  const auto lanes = lanes_of_ucx({.settings = {{"TLS", "tcp,self"}}});
  ASSERT_TRUE(lanes.ok()) << lanes.status().message();
  EXPECT_NE(std::ranges::find(lanes.value(), Lane{.name = "tcp", .device = "lo"}), lanes.value().end());
  EXPECT_NE(std::ranges::find(lanes.value(), Lane{.name = "self", .device = "memory"}), lanes.value().end());
}

TEST(RdmaLanes, of_this_host_are_over_its_devices) {
  const auto lanes = rdma_lanes();
  ASSERT_TRUE(lanes.ok()) << lanes.status().message();
  EXPECT_EQ(lanes_over(rdma_devices(), lanes.value()).size(), lanes.value().size());
}

TEST(RdmaLanes, of_settings_that_ucx_refuses_are_an_error) {
  const auto lanes = lanes_of_ucx({.settings = {{"TLS", "no_such_transport"}}});
  EXPECT_FALSE(lanes.ok());
}

}  // namespace
}  // namespace axon::transport
